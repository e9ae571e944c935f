package httpserver

import (
	"bufio"
	"bytes"
	"fmt"
	"net"
	"net/http"
	"strconv"

	"github.com/hubrelay/hubrelay/relay"
)

// envelopeListener replaces the error responses of net/http, such as for an invalid request line or a large header,
// with the error envelope. It works only without TLS, because net/http needs the *tls.Conn itself.
type envelopeListener struct{ net.Listener }

// Accept returns a connection whose Write replaces error responses of net/http.
func (l *envelopeListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &envelopeConn{Conn: conn}, nil
}

// envelopeConn is an accepted connection. [UnwrapHijack] returns the inner connection when it is hijacked.
type envelopeConn struct{ net.Conn }

// The error responses of net/http consist of a status line, this header and the body. Responses of handlers differ,
// because they always have a Date header.
const (
	netHTTPErrorStart  = "HTTP/1.1 "
	netHTTPErrorHeader = "\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\n"
	netHTTPErrorLimit  = 512
)

// CloseWrite closes the write side. net/http uses it to let the client read the response.
func (c *envelopeConn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}

// Write writes b, or the envelope if b is a 4xx or 5xx response of net/http.
func (c *envelopeConn) Write(b []byte) (int, error) {
	if e := parseNetHTTPError(b); e != nil {
		body := Envelope(e)
		response := fmt.Appendf(nil, "HTTP/1.1 %d %s\r\nContent-Type: application/json; charset=utf-8\r\n"+
			"Cache-Control: no-store\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s",
			e.Status(), http.StatusText(e.Status()), len(body), body)
		if _, err := c.Conn.Write(response); err != nil {
			return 0, err
		}
		return len(b), nil
	}
	return c.Conn.Write(b)
}

// parseNetHTTPError returns the error of a response of net/http, and nil if b is not such a response.
func parseNetHTTPError(b []byte) *relay.Error {
	if len(b) > netHTTPErrorLimit || !bytes.HasPrefix(b, []byte(netHTTPErrorStart)) {
		return nil
	}
	line, _, _ := bytes.Cut(b, []byte("\r\n"))
	text, ok := bytes.CutPrefix(b[len(line):], []byte(netHTTPErrorHeader))
	if !ok || len(line) < len(netHTTPErrorStart)+3 {
		return nil
	}
	status, err := strconv.Atoi(string(line[len(netHTTPErrorStart) : len(netHTTPErrorStart)+3]))
	switch {
	case err != nil || status < http.StatusBadRequest:
		return nil
	case status == http.StatusRequestHeaderFieldsTooLarge:
		return relay.NewError(relay.CodeTooLarge, "the request's header is too large")
	default:
		return relay.NewError(relay.CodeInvalidSyntax, "the request is not HTTP as it should be: "+string(text))
	}
}

// rawHijacker removes the wrappers of this package from hijacked connections.
type rawHijacker struct{ http.ResponseWriter }

// UnwrapHijack returns w with a Hijack method that returns the *tls.Conn, or without TLS a connection that has the
// method SyscallConn.
func UnwrapHijack(w http.ResponseWriter) http.ResponseWriter { return rawHijacker{w} }

// Unwrap returns the inner writer, for http.ResponseController.
func (h rawHijacker) Unwrap() http.ResponseWriter { return h.ResponseWriter }

// Hijack implements http.Hijacker.
func (h rawHijacker) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(h.ResponseWriter).Hijack()
	return rawConn(conn), rw, err
}
