package httpclient

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"net/url"
	"reflect"
	"testing"
)

// recordingConn stores the bytes that are written to it.
type recordingConn struct {
	net.Conn
	out bytes.Buffer
}

func (c *recordingConn) Write(p []byte) (int, error) { return c.out.Write(p) }

// encodeRequest returns the bytes that writeRequest writes for p.
func encodeRequest(t *testing.T, p *Request) *bytes.Buffer {
	t.Helper()
	var conn recordingConn
	c := &http1Conn{Conn: &conn}
	if err := c.writeRequest(p); err != nil || !c.writeFinished(finalReadTimeout) || c.bytesSent != conn.out.Len() {
		t.Fatal(err)
	}
	return &conn.out
}

// Every encoded request parses as exactly one request, which equals the one that net/http writes.
func FuzzWriteRequest(f *testing.F) {
	for _, s := range [][4]string{
		{"http://example.com/a%2Fb?c=d&e", "webhook-id", "5f0c8a7e9d3b2a1c4e6f8a92", "{}"},
		{"https://[::1]:8443", "X-A", "", ""},
		{"http://example.com/a b\u00e9?q=\u00e9 x", "X-A", "a\r\nX-B: c", "x"},
		{"http://example.com", "X-A: b\r\nX-C", "d", "x"},
		{"http://example.com", "content-length", "0", "GET / HTTP/1.1\r\n\r\n"},
		{"http://example.com", "TRANSFER-ENCODING", "chunked", "0\r\n\r\n"},
		{"http://[fe80::1%25lo]/", "Connection", "close", "x"},
		{"http:opaque", "Host", "other.example.com", "x"},
	} {
		f.Add(s[0], s[1], s[2], s[3])
	}
	f.Fuzz(func(t *testing.T, address, name, value, body string) {
		u, err := url.Parse(address)
		if err != nil {
			return
		}
		header := http.Header{name: {value, "second"}, "User-Agent": {"hubrelay"}}
		p := &Request{
			Head:   NewRequestTemplate(u, header, "webhook-id", "webhook-signature", "X-Own", "X-Unused"),
			Values: []string{value, "", "v1,a v1,b"},
			Body:   []byte(body),
		}
		if p.Head.encoded == nil || !arePrintableASCII(p.Values) {
			return
		}
		parse := func(text *bytes.Buffer) (*http.Request, string) {
			in := bufio.NewReader(text)
			req, err := http.ReadRequest(in)
			if err != nil {
				t.Fatalf("parse request: %v", err)
			}
			body, err := io.ReadAll(req.Body)
			if _, end := in.ReadByte(); err != nil || end == nil {
				t.Fatalf("read body: got error %v, extra bytes %v", err, end == nil)
			}
			return req, string(body)
		}
		got, gotBody := parse(encodeRequest(t, p))
		var out bytes.Buffer
		if err := p.ToHTTP(context.Background()).Write(&out); err != nil {
			t.Fatalf("write request with net/http: %v", err)
		}
		want, wantBody := parse(&out)
		if gotBody != wantBody || got.Method != want.Method || got.RequestURI != want.RequestURI ||
			got.Host != want.Host || got.ContentLength != want.ContentLength ||
			!reflect.DeepEqual(got.Header, want.Header) {
			t.Errorf("got %v %q\nwant %v %q", got, gotBody, want, wantBody)
		}
	})
}

func TestNewRequestTemplate_EncodesOnlySafeRequests(t *testing.T) {
	t.Parallel()
	plain := url.URL{Scheme: "http", Host: "example.com", Path: "/a"}
	if NewRequestTemplate(&plain, http.Header{"X-A": {"b"}}, "X-B").encoded == nil {
		t.Fatal("a valid template was not encoded")
	}
	for name, header := range map[string]http.Header{
		"line break in a value": {"X-A": {"a\r\nX-B: c"}},
		"line break in a name":  {"X-A\r\nX-B": {"c"}},
		"content length":        {"content-length": {"0"}},
		"transfer encoding":     {"Transfer-encoding": {"chunked"}},
		"per-request header":    {"webhook-id": {"c"}},
	} {
		if NewRequestTemplate(&plain, header, "webhook-id").encoded != nil {
			t.Errorf("%s: the template was encoded", name)
		}
	}
	for name, u := range map[string]url.URL{
		"host with a zone":        {Scheme: "http", Host: "[fe80::1%lo]"},
		"host that is not ASCII":  {Scheme: "http", Host: "é.example.com"},
		"line break in the query": {Scheme: "http", Host: "example.com", RawQuery: "a\r\nX: y"},
		"path without a slash":    {Scheme: "http", Host: "example.com", Path: "a"},
	} {
		if NewRequestTemplate(&u, nil).encoded != nil {
			t.Errorf("%s: the template was encoded", name)
		}
	}
	for _, name := range []string{"X-A\r\nX-B", "connection", ""} {
		if NewRequestTemplate(&plain, nil, name).encoded != nil {
			t.Errorf("per-request header %q: the template was encoded", name)
		}
	}
}

// A per-request value cannot add a header. net/http rejects a value that cannot be sent unchanged.
func TestPost_ValueWithLineBreak(t *testing.T) {
	t.Parallel()
	target, conns := startScriptedServer(t, func(_ int, conn net.Conn, in *bufio.Reader) {
		if readRequest(in) {
			_, _ = io.WriteString(conn, okResponse)
		}
	})
	c := newTestClient(t)
	head := NewRequestTemplate(target.URL(), nil, "webhook-id")
	_, err := c.transport.Post(t.Context(), &Request{Head: head, Values: []string{"a\r\nX-B: c"}})
	if err == nil || conns() != 0 {
		t.Errorf("got error %v over %d connections, want an error over 0", err, conns())
	}
}
