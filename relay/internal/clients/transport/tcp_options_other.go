//go:build !linux

package transport

import (
	"net"
	"time"
)

// LimitUnsent does nothing. This system limits unsent data by the send buffer.
func LimitUnsent(net.Conn) {}

// SetTCPUserTimeout does nothing. This system has its own limit for unacknowledged data.
func SetTCPUserTimeout(net.Conn, time.Duration) {}
