package httpserver

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"

	"github.com/hubrelay/hubrelay/relay"
)

// The error responses of net/http consist of a status line, this header and the body. Responses of handlers differ,
// because they always have a Date header.
const (
	netHTTPErrorStart  = "HTTP/1.1 "
	netHTTPErrorHeader = "\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\n"
	netHTTPErrorLimit  = 512
)

// writeRawError writes the envelope of e as the last response of HTTP/1 on a connection.
func writeRawError(w io.Writer, e *relay.Error) error {
	body := Envelope(e)
	_, err := fmt.Fprintf(w, "HTTP/1.1 %d %s\r\nContent-Type: application/json; charset=utf-8\r\n"+
		"Cache-Control: no-store\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s",
		e.Status(), http.StatusText(e.Status()), len(body), body)
	return err
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
