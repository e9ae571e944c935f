//go:build !linux

package transport

import (
	"net"
	"time"
)

// SetTCPUserTimeout does nothing. This system has its own limit for unacknowledged data.
func SetTCPUserTimeout(net.Conn, time.Duration) {}
