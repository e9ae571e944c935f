package httpserver

import (
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"testing"

	"github.com/hubrelay/hubrelay/internal/testkit"
)

// A shutdown closes connections without data, but not those with an unread request.
func TestCloseAll_KeepsConnectionsWithUnreadRequest(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	for name, as := range map[string]func(net.Conn) net.Conn{
		"plain": func(c net.Conn) net.Conn { return &plainConn{Conn: c, limited: &limitedConn{Conn: c}} },
		"tls": func(c net.Conn) net.Conn {
			return &plainConn{Conn: tls.Server(c, &tls.Config{MinVersion: tls.VersionTLS12}), limited: &limitedConn{Conn: c}}
		},
	} {
		for _, request := range []string{"", "GET / HTTP/1.1\r\n"} {
			client, err := net.Dial("tcp", l.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			bare, err := l.Accept()
			if err != nil {
				t.Fatal(err)
			}
			if _, err := io.WriteString(client, request); err != nil {
				t.Fatal(err)
			}
			testkit.WaitFor(t, "the request has arrived", func() bool { return request == "" || hasUnreadData(bare) })
			var s newConns
			s.onState(as(bare), http.StateNew)
			s.closeAll()
			text := make([]byte, len(request))
			_, err = io.ReadFull(bare, text)
			if request == "" {
				_, err = bare.Write([]byte("x"))
			}
			if open := err == nil; open != (request != "") || string(text) != request {
				t.Errorf("%s: %q can be read of %q, %v", name, text, request, err)
			}
			_ = client.Close()
			_ = bare.Close()
		}
	}
}
