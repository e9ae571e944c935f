package httpclient

import (
	"bytes"
	"context"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// RequestTemplate is what posts to one URL have in common. It is immutable, and costs too much to be made for each of them.
type RequestTemplate struct {
	url            *url.URL
	header         http.Header
	perRequest     []string // the names of headers of which each post has its own value
	encoded        []byte   // what is sent of url and header; nil where net/http must send it, or says what is wrong with it
	headerPrefixes []string // what is sent before each own value
}

// NewRequestTemplate returns the head of posts to u, of which each has values of its own for the headers of these names. Neither u
// nor header may change any more.
func NewRequestTemplate(u *url.URL, header http.Header, own ...string) *RequestTemplate {
	h := &RequestTemplate{url: u, header: header, perRequest: own}
	if !canWriteDirectly(u, header, own) {
		return h
	}
	h.encoded = append(h.encoded, "POST "+u.RequestURI()+" HTTP/1.1\r\nHost: "+u.Host...)
	for _, name := range slices.Sorted(maps.Keys(header)) { // so that a request is always the same
		for _, v := range header[name] {
			h.encoded = append(h.encoded, "\r\n"+name+": "+v...)
		}
	}
	for _, name := range own {
		h.headerPrefixes = append(h.headerPrefixes, "\r\n"+name+": ")
	}
	return h
}

// Request is one request. Nothing of it may ever change: where an answer came before its end, it is read for a while after that.
type Request struct {
	Head *RequestTemplate
	// Values are those of the post's own headers, in the order of their names. A header whose value is empty is left out, and
	// so are those behind the last value.
	Values []string
	Body   []byte
}

// ToHTTP returns the request as net/http sends it.
func (p *Request) ToHTTP(ctx context.Context) *http.Request {
	h := maps.Clone(p.Head.header)
	if h == nil {
		h = make(http.Header, len(p.Values))
	}
	for i, v := range p.Values {
		if v != "" {
			h[p.Head.perRequest[i]] = []string{v}
		}
	}
	req := postRequest.WithContext(ctx)
	req.URL, req.Host, req.Header = p.Head.url, p.Head.url.Host, h
	if len(p.Body) > 0 {
		req.ContentLength = int64(len(p.Body))
		// Lets net/http start over on a fresh connection when an idle one turned out closed before a byte was sent.
		req.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(p.Body)), nil }
		req.Body, _ = req.GetBody()
	}
	return req
}

// postRequest is what all requests have in common.
var postRequest = http.Request{Method: http.MethodPost, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Body: http.NoBody}

// reservedHeaders are the headers that say where a request ends or what becomes of its connection.
var reservedHeaders = [...]string{
	"Host", "Content-Length", "Transfer-Encoding", "Trailer", "Te", "Connection", "Keep-Alive", "Proxy-Connection", "Upgrade", "Expect",
}

// canWriteDirectly tells whether send can write posts with such a head. net/http writes all others, or says what is wrong with them.
func canWriteDirectly(u *url.URL, header http.Header, own []string) bool {
	if u.Opaque != "" || u.Path != "" && u.Path[0] != '/' || !isHost(u.Host) || !isPrintableASCII(u.RawQuery) {
		return false
	}
	for name, values := range header {
		if !isPlainHeader(name) || slices.Contains(own, name) || !allPlain(values) {
			return false
		}
	}
	for _, name := range own {
		if !isPlainHeader(name) {
			return false
		}
	}
	return true
}

// isPlainHeader tells whether name can be the name of a header that is not ours to set.
func isPlainHeader(name string) bool {
	return IsToken(name) && !slices.ContainsFunc(reservedHeaders[:], func(f string) bool { return len(f) == len(name) && strings.EqualFold(f, name) })
}

func allPlain(values []string) bool {
	for _, v := range values {
		if !isPrintableASCII(v) {
			return false
		}
	}
	return true
}

// isPrintableASCII tells whether s is of printable ASCII alone.
func isPrintableASCII(s string) bool {
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

// appendHead writes what stands before the body of a post whose head and values are sendable.
func (p *Request) appendHead(out []byte) []byte {
	out = append(out, p.Head.encoded...)
	for i, v := range p.Values {
		if v != "" {
			out = append(append(out, p.Head.headerPrefixes[i]...), v...)
		}
	}
	out = append(out, "\r\nContent-Length: "...)
	return append(strconv.AppendInt(out, int64(len(p.Body)), 10), "\r\n\r\n"...)
}
