//go:build unix

package testkit_test

import (
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/internal/testkit"
)

// echoServer returns the address of a server that sends back what it receives.
func echoServer(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = io.Copy(conn, conn)
				_ = conn.Close()
			}()
		}
	}()
	return l.Addr().String()
}

func dial(t *testing.T, p *testkit.Proxy) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", p.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// echo sends a byte and reads one until the timeout.
func echo(conn net.Conn, timeout time.Duration) error {
	_ = conn.SetDeadline(time.Now().Add(timeout))
	if _, err := conn.Write([]byte("x")); err != nil {
		return err
	}
	_, err := conn.Read(make([]byte, 1))
	return err
}

func mustEcho(t *testing.T, conn net.Conn) {
	t.Helper()
	if err := echo(conn, testkit.Patience); err != nil {
		t.Fatalf("got %v, want an echo", err)
	}
}

func TestProxyCut(t *testing.T) {
	server := echoServer(t)
	p := testkit.StartProxy(t, func() string { return server })
	first := dial(t, p)
	mustEcho(t, first)
	p.Cut()
	if err := echo(first, testkit.Patience); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("got %v after Cut, want a closed connection", err)
	}
	mustEcho(t, dial(t, p))
}

func TestProxyStall(t *testing.T) {
	server := echoServer(t)
	p := testkit.StartProxy(t, func() string { return server })
	first := dial(t, p)
	mustEcho(t, first)
	p.Stall()
	if err := echo(first, 50*time.Millisecond); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("got %v after Stall, want a timeout", err)
	}
	mustEcho(t, dial(t, p))
	p.Cut()
	if err := echo(first, testkit.Patience); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("got %v after Cut, want a closed connection", err)
	}
}

func TestProxyClosesWithEitherEnd(t *testing.T) {
	server := echoServer(t)
	p := testkit.StartProxy(t, func() string { return server })
	conn := dial(t, p)
	mustEcho(t, conn)
	tcp, ok := conn.(*net.TCPConn)
	if !ok {
		t.Fatalf("got a %T", conn)
	}
	if err := tcp.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	_ = conn.SetDeadline(time.Now().Add(testkit.Patience))
	if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("got %v, want EOF", err)
	}
}

func TestProxyResolvesTargetForEachConnection(t *testing.T) {
	targets := []string{echoServer(t), "127.0.0.1:1"}
	next := make(chan string, len(targets))
	for _, target := range targets {
		next <- target
	}
	p := testkit.StartProxy(t, func() string { return <-next })
	mustEcho(t, dial(t, p))
	if err := echo(dial(t, p), testkit.Patience); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("got %v without a server, want a closed connection", err)
	}
}
