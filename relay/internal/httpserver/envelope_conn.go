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

// envelopeListener puts the answers that net/http writes by itself (an unreadable request line, headers too large) into
// the envelope. That is possible without TLS only: net/http must see a *tls.Conn where there is one.
type envelopeListener struct{ net.Listener }

// Accept returns a connection whose Write looks for net/http's own answers.
func (l *envelopeListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &envelopeConn{Conn: conn}, nil
}

// envelopeConn is a connection of net/http's. [UnwrapHijack] gives the one below to whoever hijacks it.
type envelopeConn struct{ net.Conn }

// Every answer that net/http writes by itself begins with these, up to its body. No handler's answer lacks a Date.
const (
	ownAnswerStart  = "HTTP/1.1 "
	ownAnswerHeader = "\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\n"
	ownAnswerLimit  = 512
)

// CloseWrite half-closes, which net/http does so that a client still reads the answer.
func (c *envelopeConn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}

// Write passes b on, except where it is net/http's own 4xx or 5xx.
func (c *envelopeConn) Write(b []byte) (int, error) {
	if e := netHTTPError(b); e != nil {
		body := Envelope(e)
		answer := fmt.Appendf(nil, "HTTP/1.1 %d %s\r\nContent-Type: application/json; charset=utf-8\r\n"+
			"Cache-Control: no-store\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s",
			e.Status(), http.StatusText(e.Status()), len(body), body)
		if _, err := c.Conn.Write(answer); err != nil {
			return 0, err
		}
		return len(b), nil
	}
	return c.Conn.Write(b)
}

func netHTTPError(b []byte) *relay.Error {
	if len(b) > ownAnswerLimit || !bytes.HasPrefix(b, []byte(ownAnswerStart)) {
		return nil
	}
	line, _, _ := bytes.Cut(b, []byte("\r\n"))
	text, ok := bytes.CutPrefix(b[len(line):], []byte(ownAnswerHeader))
	if !ok || len(line) < len(ownAnswerStart)+3 {
		return nil
	}
	status, err := strconv.Atoi(string(line[len(ownAnswerStart) : len(ownAnswerStart)+3]))
	switch {
	case err != nil || status < http.StatusBadRequest:
		return nil
	case status == http.StatusRequestHeaderFieldsTooLarge:
		return relay.NewError(relay.CodeTooLarge, "the request's header is too large")
	default:
		return relay.NewError(relay.CodeInvalidSyntax, "the request is not HTTP as it should be: "+string(text))
	}
}

// rawHijacker hides plainConn from whoever takes a connection over.
type rawHijacker struct{ http.ResponseWriter }

// UnwrapHijack returns w so that Hijack gives the bare TCP connection (or *tls.Conn) that net/http accepted, without what stands
// between for its own answers.
func UnwrapHijack(w http.ResponseWriter) http.ResponseWriter { return rawHijacker{w} }

// Unwrap lets http.ResponseController find the writer below.
func (h rawHijacker) Unwrap() http.ResponseWriter { return h.ResponseWriter }

// Hijack takes the connection over, as http.Hijacker says.
func (h rawHijacker) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(h.ResponseWriter).Hijack()
	if plain, ok := conn.(*envelopeConn); ok {
		conn = plain.Conn
	}
	return conn, rw, err
}
