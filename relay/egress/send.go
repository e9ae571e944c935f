package egress

import (
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

// framing are the headers that say where a request ends or what becomes of its connection.
var framing = [...]string{
	"Host", "Content-Length", "Transfer-Encoding", "Trailer", "Te", "Connection", "Keep-Alive", "Proxy-Connection", "Upgrade", "Expect",
}

// sendable tells whether send can write req. net/http writes all others, or says what is wrong with them.
func sendable(req *http.Request) bool {
	u := req.URL
	if u.Opaque != "" || u.Path != "" && u.Path[0] != '/' || req.Host != u.Host || !isHost(u.Host) || !plain(u.RawQuery) ||
		!IsToken(req.Method) || req.Close || len(req.TransferEncoding)+len(req.Trailer) > 0 {
		return false
	}
	for name, values := range req.Header {
		if !IsToken(name) || slices.ContainsFunc(framing[:], func(f string) bool { return len(f) == len(name) && strings.EqualFold(f, name) }) {
			return false
		}
		for _, v := range values {
			if !plain(v) {
				return false
			}
		}
	}
	return true
}

// plain tells whether s is of printable ASCII alone.
func plain(s string) bool {
	for i := range len(s) {
		if s[i] < ' ' || s[i] >= 0x7f {
			return false
		}
	}
	return true
}

// isHost tells whether s is of what names, addresses and ports are made of; a zone has no business in a request.
func isHost(s string) bool {
	for i := range len(s) {
		if c := s[i]; !tokens[c] && c != ':' && c != '[' && c != ']' || c == '%' {
			return false
		}
	}
	return s != ""
}

// tokens are the bytes of which IsToken speaks.
var tokens = func() (set [256]bool) {
	for _, c := range []byte("!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ") {
		set[c] = true
	}
	return set
}()

// IsToken tells whether s can be the name of a header or a method, RFC 9110, 5.6.2.
func IsToken(s string) bool {
	for i := range len(s) {
		if !tokens[s[i]] {
			return false
		}
	}
	return s != ""
}

// send writes a sendable request. Its errors are those of the connection, but for a body that is not as long as it should
// be. The buffer remembers its first error until it is flushed.
func (c *conn) send(req *http.Request) error {
	w := c.w
	_, _ = w.WriteString(req.Method)
	_ = w.WriteByte(' ')
	_, _ = w.WriteString(req.URL.RequestURI())
	_, _ = w.WriteString(" HTTP/1.1\r\nHost: ")
	_, _ = w.WriteString(req.Host)
	_, _ = w.WriteString("\r\nContent-Length: ")
	_, _ = w.Write(strconv.AppendInt(w.AvailableBuffer(), req.ContentLength, 10))
	names := make([]string, 0, 16)
	for name := range req.Header {
		names = append(names, name)
	}
	slices.Sort(names) // so that a request is always the same
	for _, name := range names {
		for _, v := range req.Header[name] {
			_, _ = w.WriteString("\r\n")
			_, _ = w.WriteString(name)
			_, _ = w.WriteString(": ")
			_, _ = w.WriteString(v)
		}
	}
	_, _ = w.WriteString("\r\n\r\n")
	if req.Body != nil {
		n, err := io.Copy(w, req.Body)
		closeBody(req)
		if err == nil && n != req.ContentLength {
			err = fmt.Errorf("the body has %d bytes instead of %d", n, req.ContentLength)
		}
		if err != nil {
			return err
		}
	}
	return w.Flush()
}
