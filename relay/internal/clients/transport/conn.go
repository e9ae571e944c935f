// Package transport turns HTTP requests into connections that package clients writes to: the websocket handshake of RFC 6455
// with negotiation of permessage-deflate, hijacked HTTP/1.1 connections, and HTTP/2 streams. It also has the system
// calls for writes that do not block.
//
// It knows neither frames nor subscriptions, and decides nothing about who may connect.
package transport

import (
	"crypto/tls"
	"errors"
	"net"
	"os"
)

// CloseWithoutFlush closes conn without waiting for the remote end. Closing TLS would write first and may block.
func CloseWithoutFlush(conn net.Conn) {
	if secure, ok := conn.(*tls.Conn); ok {
		conn = secure.NetConn()
	}
	_ = conn.Close()
}

// CloseWrite ends the sending direction of conn. If conn cannot be closed in one direction, CloseWrite closes it.
func CloseWrite(conn net.Conn) {
	switch conn := conn.(type) {
	case *tls.Conn:
		_ = conn.CloseWrite()
	case interface{ CloseWrite() error }:
		_ = conn.CloseWrite()
	default:
		_ = conn.Close()
	}
}

// IsTimeout reports whether a write failed because the socket accepted nothing until the write deadline.
func IsTimeout(err error) bool { return errors.Is(err, os.ErrDeadlineExceeded) }
