package httpserver

import (
	"bufio"
	"io"
	"net/http"
	"net/netip"
	"testing"

	"github.com/hubrelay/hubrelay/relay/internal/clientaddr"
)

// Only a trusted proxy can change the address of the client, and it need not.
func TestProxyProtocol(t *testing.T) {
	t.Parallel()
	echo := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.RemoteAddr) })
	trusting := run(t, Options{
		Handler: echo, TrustedProxies: clientaddr.Proxies{Networks: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}},
	})
	others := run(t, Options{
		Handler: echo, TrustedProxies: clientaddr.Proxies{Networks: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}},
	})
	const request = "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
	const v1 = "PROXY TCP4 198.51.100.7 127.0.0.1 4711 80\r\n"
	// Version 2: signature, PROXY over TCP4, 12 bytes of addresses and ports.
	const v2 = "\r\n\r\n\x00\r\nQUIT\n\x21\x11\x00\x0c\xc6\x33\x64\x07\x7f\x00\x00\x01\x12\x67\x00\x50"
	for name, c := range map[string]struct {
		server  *Server
		request string
		status  int
		body    string
	}{
		"version 1":              {trusting, v1 + request, 200, "198.51.100.7:4711"},
		"version 2":              {trusting, v2 + request, 200, "198.51.100.7:4711"},
		"a peer that is a fraud": {others, v1 + request, 400, ""},
	} {
		conn := dial(t, c.server)
		if _, err := io.WriteString(conn, c.request); err != nil {
			t.Fatal(err)
		}
		response, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		body, _ := io.ReadAll(response.Body)
		if response.StatusCode != c.status || c.body != "" && string(body) != c.body {
			t.Errorf("%s: got %d %s", name, response.StatusCode, body)
		}
	}
	conn := dial(t, trusting)
	_, _ = io.WriteString(conn, request)
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	if body, _ := io.ReadAll(response.Body); string(body) != conn.LocalAddr().String() {
		t.Errorf("without the header: got %s, want %s", body, conn.LocalAddr())
	}
}
