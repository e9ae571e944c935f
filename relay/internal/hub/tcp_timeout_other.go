//go:build !linux

package hub

import (
	"net"
	"time"
)

// setTCPUserTimeout does nothing. The system has its own timeout for dead connections.
func setTCPUserTimeout(net.Conn, time.Duration) {}
