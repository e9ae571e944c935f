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

// written is a connection that keeps what is written to it.
type written struct {
	net.Conn
	out bytes.Buffer
}

func (w *written) Write(p []byte) (int, error) { return w.out.Write(p) }

// sent is what send writes of p.
func sent(t *testing.T, p *Request) *bytes.Buffer {
	t.Helper()
	var to written
	c := &http1Conn{Conn: &to}
	if err := c.writeRequest(p); err != nil || !c.writeFinished(finalReadTimeout) || c.bytesSent != to.out.Len() {
		t.Fatal(err)
	}
	return &to.out
}

// Whatever is in a request, what is sent of it is read as one request, the same as the one that net/http writes.
func FuzzSend(f *testing.F) {
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
		p := &Request{Head: NewRequestTemplate(u, header, "webhook-id", "webhook-signature", "X-Own", "X-Unused"), Values: []string{value, "", "v1,a v1,b"}, Body: []byte(body)}
		if p.Head.encoded == nil || !allPlain(p.Values) {
			return
		}
		read := func(text *bytes.Buffer) (*http.Request, string) {
			in := bufio.NewReader(text)
			req, err := http.ReadRequest(in)
			if err != nil {
				t.Fatalf("not a request: %v", err)
			}
			body, err := io.ReadAll(req.Body)
			if _, end := in.ReadByte(); err != nil || end == nil {
				t.Fatalf("the body ends with %v, and more came: %v", err, end == nil)
			}
			return req, string(body)
		}
		own, ownBody := read(sent(t, p))
		var out bytes.Buffer
		if err := p.ToHTTP(context.Background()).Write(&out); err != nil {
			t.Fatalf("net/http does not send it: %v", err)
		}
		theirs, theirBody := read(&out)
		if ownBody != theirBody || own.Method != theirs.Method || own.RequestURI != theirs.RequestURI || own.Host != theirs.Host ||
			own.ContentLength != theirs.ContentLength || !reflect.DeepEqual(own.Header, theirs.Header) {
			t.Errorf("%v %q\n%v %q", own, ownBody, theirs, theirBody)
		}
	})
}

func TestSendable(t *testing.T) {
	t.Parallel()
	plain := url.URL{Scheme: "http", Host: "example.com", Path: "/a"}
	if NewRequestTemplate(&plain, http.Header{"X-A": {"b"}}, "X-B").encoded == nil {
		t.Fatal("a plain head is not sendable")
	}
	for name, header := range map[string]http.Header{
		"a line break in a value":    {"X-A": {"a\r\nX-B: c"}},
		"a line break in a name":     {"X-A\r\nX-B": {"c"}},
		"a length":                   {"content-length": {"0"}},
		"an encoding":                {"Transfer-encoding": {"chunked"}},
		"what each post says itself": {"webhook-id": {"c"}},
	} {
		if NewRequestTemplate(&plain, header, "webhook-id").encoded != nil {
			t.Errorf("%s is sent", name)
		}
	}
	for name, u := range map[string]url.URL{
		"a host with a zone":       {Scheme: "http", Host: "[fe80::1%lo]"},
		"a host beyond ASCII":      {Scheme: "http", Host: "é.example.com"},
		"a line break in the path": {Scheme: "http", Host: "example.com", RawQuery: "a\r\nX: y"},
		"a path without a slash":   {Scheme: "http", Host: "example.com", Path: "a"},
	} {
		if NewRequestTemplate(&u, nil).encoded != nil {
			t.Errorf("%s is sent", name)
		}
	}
	for _, own := range []string{"X-A\r\nX-B", "connection", ""} {
		if NewRequestTemplate(&plain, nil, own).encoded != nil {
			t.Errorf("a header named %q is sent", own)
		}
	}
}

// A post's own value never makes a header of its own, and one that cannot be sent as it is does not get past net/http.
func TestOwnValueWithLineBreak(t *testing.T) {
	t.Parallel()
	target, conns := script(t, func(_ int, conn net.Conn, in *bufio.Reader) {
		if taken(in) {
			_, _ = io.WriteString(conn, fine)
		}
	})
	c := client(t)
	_, err := c.transport.Post(t.Context(), &Request{Head: NewRequestTemplate(target.URL(), nil, "webhook-id"), Values: []string{"a\r\nX-B: c"}})
	if err == nil || conns() != 0 {
		t.Errorf("got %v, %d connections", err, conns())
	}
}
