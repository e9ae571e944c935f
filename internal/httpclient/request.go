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

// RequestTemplate is the common part of all requests to one URL. It is immutable. Create it once and reuse it, because
// encoding it is expensive.
type RequestTemplate struct {
	url            *url.URL
	header         http.Header
	perRequest     []string // the names of headers whose values differ between requests
	encoded        []byte   // encoded url and header; nil if net/http must send the request or report its error
	headerPrefixes []string // the bytes before each value of perRequest
}

// NewRequestTemplate returns the common part of requests to u. perRequest names the headers whose values [Request]
// supplies. The caller must not change u and header afterwards.
func NewRequestTemplate(u *url.URL, header http.Header, perRequest ...string) *RequestTemplate {
	h := &RequestTemplate{url: u, header: header, perRequest: perRequest}
	if !canWriteDirectly(u, header, perRequest) {
		return h
	}
	h.encoded = append(h.encoded, "POST "+u.RequestURI()+" HTTP/1.1\r\nHost: "+u.Host...)
	for _, name := range slices.Sorted(maps.Keys(header)) { // sorted to make requests reproducible
		for _, v := range header[name] {
			h.encoded = append(h.encoded, "\r\n"+name+": "+v...)
		}
	}
	for _, name := range perRequest {
		h.headerPrefixes = append(h.headerPrefixes, "\r\n"+name+": ")
	}
	return h
}

// Request is one POST request. It must never change, not even after Post has returned: if the response arrives early,
// the body is still being written.
type Request struct {
	Head *RequestTemplate
	// Values are the values of the template's per-request headers, in the same order. Headers with an empty value and
	// headers after the last value are omitted.
	Values []string
	Body   []byte
	// NewConnection is set if no idle connection may be used, because a server may close one while the request is on its way. HTTP/2
	// and requests that are left to net/http ignore it.
	NewConnection bool
}

// ToHTTP converts p to a request for net/http.
func (r *Request) ToHTTP(ctx context.Context) *http.Request {
	h := maps.Clone(r.Head.header)
	if h == nil {
		h = make(http.Header, len(r.Values))
	}
	for i, v := range r.Values {
		if v != "" {
			h[r.Head.perRequest[i]] = []string{v}
		}
	}
	req := postRequest.WithContext(ctx)
	req.URL, req.Host, req.Header = r.Head.url, r.Head.url.Host, h
	if len(r.Body) > 0 {
		req.ContentLength = int64(len(r.Body))
		// GetBody allows net/http to use a new connection if an idle one was closed before any byte was sent.
		req.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(r.Body)), nil }
		req.Body, _ = req.GetBody()
	}
	return req
}

// postRequest has the fields that are the same in all requests.
var postRequest = http.Request{
	Method: http.MethodPost, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Body: http.NoBody,
}

// reservedHeaders are the headers that define the end of a request or the use of its connection.
var reservedHeaders = [...]string{
	"Host", "Content-Length", "Transfer-Encoding", "Trailer", "Te",
	"Connection", "Keep-Alive", "Proxy-Connection", "Upgrade", "Expect",
}

// canWriteDirectly reports whether http1Conn can write requests with this URL and header. net/http sends all other
// requests, or returns an error for them.
func canWriteDirectly(u *url.URL, header http.Header, perRequest []string) bool {
	if u.Opaque != "" || u.Path != "" && u.Path[0] != '/' || !isHost(u.Host) || !isPrintableASCII(u.RawQuery) {
		return false
	}
	for name, values := range header {
		if !isPlainHeader(name) || slices.Contains(perRequest, name) || !arePrintableASCII(values) {
			return false
		}
	}
	for _, name := range perRequest {
		if !isPlainHeader(name) {
			return false
		}
	}
	return true
}

// isPlainHeader reports whether name is a valid header name that is not reserved.
func isPlainHeader(name string) bool {
	isReserved := func(reserved string) bool {
		return len(reserved) == len(name) && strings.EqualFold(reserved, name)
	}
	return IsToken(name) && !slices.ContainsFunc(reservedHeaders[:], isReserved)
}

func arePrintableASCII(values []string) bool {
	for _, v := range values {
		if !isPrintableASCII(v) {
			return false
		}
	}
	return true
}

// isPrintableASCII reports whether s has only printable ASCII characters.
func isPrintableASCII(s string) bool {
	for i := range len(s) {
		if s[i] < ' ' || s[i] >= 0x7f {
			return false
		}
	}
	return true
}

// isHost reports whether s has only characters of host names, addresses and ports. IPv6 zones are rejected because they
// must not be sent.
func isHost(s string) bool {
	for i := range len(s) {
		if c := s[i]; !tokenBytes[c] && c != ':' && c != '[' && c != ']' || c == '%' {
			return false
		}
	}
	return s != ""
}

// tokenBytes are the bytes allowed in a token.
var tokenBytes = func() (set [256]bool) {
	for _, c := range []byte("!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ") {
		set[c] = true
	}
	return set
}()

// IsToken reports whether s is a token of RFC 9110, section 5.6.2, such as the name of a header or a method.
func IsToken(s string) bool {
	for i := range len(s) {
		if !tokenBytes[s[i]] {
			return false
		}
	}
	return s != ""
}

// appendHead appends the request line and the header. The template must be encoded and all values printable.
func (r *Request) appendHead(out []byte) []byte {
	out = append(out, r.Head.encoded...)
	for i, v := range r.Values {
		if v != "" {
			out = append(append(out, r.Head.headerPrefixes[i]...), v...)
		}
	}
	out = append(out, "\r\nContent-Length: "...)
	return append(strconv.AppendInt(out, int64(len(r.Body)), 10), "\r\n\r\n"...)
}
