package clients

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"github.com/hubrelay/hubrelay/relay"
)

const handshake = "GET /?hub=h HTTP/1.1\r\nHost: x\r\nConnection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n" +
	"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"

// talk sends text and returns the connection and the answer.
func talk(t *testing.T, n *node, text string) (net.Conn, *bufio.Reader, *http.Response) {
	t.Helper()
	conn, err := net.Dial("tcp", n.server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(patience))
	if _, err := io.WriteString(conn, text); err != nil {
		t.Fatal(err)
	}
	in := bufio.NewReader(conn)
	answer, err := http.ReadResponse(in, nil)
	if err != nil {
		t.Fatal(err)
	}
	return conn, in, answer
}

func TestHandshake(t *testing.T) {
	t.Parallel()
	admitted := make(chan struct{}, 100)
	n := startNode(t, Options{}, func(s *Subscription) {
		s.Admit = func(context.Context, func()) *relay.Error {
			admitted <- struct{}{}
			return nil
		}
	})
	tests := []struct {
		name, old, new string
		status         int
	}{
		{"good", "", "", 101},
		{
			"spaces and cases",
			"Connection: keep-alive, Upgrade\r\nUpgrade: websocket",
			"connection:  UPGRADE ,x\r\nupgrade: h2c, WebSocket",
			101,
		},
		{"odd tokens", "Connection: keep-alive, Upgrade", "Connection: a;b, upgrade", 101},
		{"post", "GET", "POST", 405},
		{"http/1.0", "HTTP/1.1", "HTTP/1.0", 426},
		{"no upgrade", "Upgrade: websocket", "X: y", 426},
		{"no connection", "Connection: keep-alive, Upgrade", "Connection: keep-alive", 400},
		{"old version", "Version: 13", "Version: 8", 426},
		{"several versions", "Version: 13", "Version: 13, 8", 426},
		{"no number", "Sec-WebSocket-Version: 13\r\n", "", 400},
		{"no key", "Sec-WebSocket-Key", "X", 400},
		{"short key", "dGhlIHNhbXBsZSBub25jZQ==", "dGhlIA==", 400},
		{"bad key", "dGhlIHNhbXBsZSBub25jZQ==", "!!", 400},
		{"a body", "Host: x", "Host: x\r\nContent-Length: 1", 400},
	}
	for _, test := range tests {
		text := strings.Replace(handshake, test.old, test.new, 1)
		if strings.Contains(text, "Content-Length") {
			text += "x"
		}
		_, _, answer := talk(t, n, text)
		if answer.StatusCode != test.status {
			t.Errorf("%s: %s, want %d", test.name, answer.Status, test.status)
		}
		if strings.Contains(test.name, "version") && answer.Header.Get("Sec-WebSocket-Version") != "13" {
			t.Errorf("%s: no Sec-WebSocket-Version", test.name)
		}
		if (len(admitted) == 1) != (test.status == 101) {
			t.Errorf("%s: admitted %d times", test.name, len(admitted))
		}
		for len(admitted) > 0 {
			<-admitted
		}
	}
}

func TestServeWithoutHijacker(t *testing.T) {
	t.Parallel()
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.Header = http.Header{
		"Connection": {"upgrade"}, "Upgrade": {"websocket"}, "Sec-Websocket-Version": {"13"},
		"Sec-Websocket-Key": {"dGhlIHNhbXBsZSBub25jZQ=="},
	}
	problem := New(Options{}).ServeWebSocket(httptest.NewRecorder(), r, Subscription{
		Allows: func(string, string) bool { return true },
		Admit: func(context.Context, func()) *relay.Error {
			t.Error("admitted")
			return nil
		},
	})
	if problem == nil || problem.Status() != http.StatusInternalServerError {
		t.Errorf("got %v", problem)
	}
}

// A violation of RFC 6455 is answered with a close frame and ends the connection.
func TestBrokenClients(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		sent string
		code int
	}{
		{"unmasked", "\x81\x01x", 1002},
		{"reserved opcode", "\x83\x80\x00\x00\x00\x00", 1002},
		{"reserved bit", "\xc1\x80\x00\x00\x00\x00", 1002},
		{"fragmented ping", "\x09\x80\x00\x00\x00\x00", 1002},
		{"long ping", "\x89\xfe\x00\x80\x00\x00\x00\x00" + strings.Repeat("x", 128), 1002},
		{"continuation of nothing", "\x80\x80\x00\x00\x00\x00", 1002},
		{"huge", "\x82\xff\x00\x00\x00\x00\x40\x00\x00\x00\x00\x00\x00\x00" + strings.Repeat("x", 100_000), 1009},
		{
			"many fragments",
			"\x01\x80\x00\x00\x00\x00" + strings.Repeat("\x00\xfd\x00\x00\x00\x00"+strings.Repeat("x", 125), 40),
			1009,
		},
		{"http", "GET / HTTP/1.1\r\n\r\n", 1002},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			n := startNode(t, Options{}, nil)
			conn, in, answer := talk(t, n, handshake)
			if answer.StatusCode != http.StatusSwitchingProtocols {
				t.Fatal(answer.Status)
			}
			if _, err := io.WriteString(conn, test.sent); err != nil {
				t.Fatal(err)
			}
			header := make([]byte, 4)
			if _, err := io.ReadFull(in, header); err != nil {
				t.Fatalf("no close frame: %v", err)
			}
			if code := closeCode(header); header[0] != finClose || code != test.code {
				t.Errorf("got opcode %x with %d, want a close frame with %d", header[0], code, test.code)
			}
			_ = conn.Close()
			n.wantEnding(t, ClosedProtocolError)
		})
	}
}

func ExampleServer() {
	h := New(Options{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s := Subscription{Hub: "5e6f", Allows: func(hub, _ string) bool { return hub == "5e6f" }}
		if problem := h.ServeWebSocket(w, r, s); problem != nil {
			http.Error(w, problem.Error(), problem.Status())
		}
	}))
	defer server.Close()
	answer, err := http.Get(server.URL)
	if err != nil {
		fmt.Println(err)
		return
	}
	_ = answer.Body.Close()
	fmt.Println(answer.StatusCode, h.Clients())
	http.DefaultClient.CloseIdleConnections()
	// Output: 426 0
}

func TestRefusedByAdmit(t *testing.T) {
	t.Parallel()
	n := startNode(t, Options{}, func(s *Subscription) {
		s.Admit = func(context.Context, func()) *relay.Error { return relay.NewError(relay.CodeAuthInvalid, "used") }
	})
	_, answer, err := websocket.DefaultDialer.Dial(n.url("hub=h"), nil)
	if err == nil || answer.StatusCode != http.StatusUnauthorized {
		t.Fatalf("got %v %v, want 401", answer, err)
	}
	_ = answer.Body.Close()
	if n.Clients() != 0 || n.index.size() != 0 {
		t.Error("a refused client stays in the server")
	}
}
