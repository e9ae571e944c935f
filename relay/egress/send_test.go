package egress

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"net/http"
	"net/url"
	"reflect"
	"testing"
)

// sent is what send writes of req.
func sent(t *testing.T, req *http.Request) *bytes.Buffer {
	t.Helper()
	var out bytes.Buffer
	c := &conn{w: bufio.NewWriter(&out)}
	if err := c.send(req); err != nil {
		t.Fatal(err)
	}
	return &out
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
		header := http.Header{name: {value, "second"}, "User-Agent": {"hubrelay"}, "webhook-signature": {"v1,a v1,b"}}
		if req := NewPost(context.Background(), u, header, []byte(body)); !sendable(req) {
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
		own, ownBody := read(sent(t, NewPost(context.Background(), u, header, []byte(body))))
		var out bytes.Buffer
		if err := NewPost(context.Background(), u, header, []byte(body)).Write(&out); err != nil {
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
	for name, change := range map[string]func(*http.Request){
		"a line break in a value":  func(r *http.Request) { r.Header["X-A"] = []string{"a\r\nX-B: c"} },
		"a line break in a name":   func(r *http.Request) { r.Header["X-A\r\nX-B"] = []string{"c"} },
		"a length":                 func(r *http.Request) { r.Header["content-length"] = []string{"0"} },
		"an encoding":              func(r *http.Request) { r.Header["Transfer-encoding"] = []string{"chunked"} },
		"another host":             func(r *http.Request) { r.Host = "other.example.com" },
		"a host with a zone":       func(r *http.Request) { r.URL.Host, r.Host = "[fe80::1%lo]", "[fe80::1%lo]" },
		"a host beyond ASCII":      func(r *http.Request) { r.URL.Host, r.Host = "é.example.com", "é.example.com" },
		"a line break in the path": func(r *http.Request) { r.URL.RawQuery = "a\r\nX: y" },
		"a method of two words":    func(r *http.Request) { r.Method = "POST /" },
		"a trailer":                func(r *http.Request) { r.Trailer = http.Header{"X-A": nil} },
	} {
		req := NewPost(t.Context(), &url.URL{Scheme: "http", Host: "example.com", Path: "/a"}, http.Header{}, []byte("x"))
		if !sendable(req) {
			t.Fatal("a plain request is not sendable")
		}
		if change(req); sendable(req) {
			t.Errorf("%s is sent", name)
		}
	}
}
