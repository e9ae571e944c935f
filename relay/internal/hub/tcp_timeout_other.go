//go:build !linux

package hub

import (
	"net"
	"time"
)

// setTCPUserTimeout does nothing: this system has its own time limit for connections whose far side is gone.
func setTCPUserTimeout(net.Conn, time.Duration) {}
