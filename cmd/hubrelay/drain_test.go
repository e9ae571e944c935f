package main_test

import (
	"fmt"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"

	"github.com/gorilla/websocket"

	"github.com/hubrelay/hubrelay/internal/testkit"
)

// longGrace avoids that a slow machine cuts off the stop of a daemon.
const longGrace = "HUBRELAY_SERVER__SHUTDOWN_GRACE=60s"

// TestLongStopWithManyClients stops a daemon with hundreds of clients. It rejects new clients and asks all others to
// reconnect.
func TestLongStopWithManyClients(t *testing.T) {
	t.Parallel()
	const clients = 300
	d := serve(t, daemonConfig{redis: `url: "memory:"`, env: []string{longGrace}})
	sockets := make([]*socket, clients)
	for i := range sockets {
		sockets[i] = d.connect(t, opsKey, []string{"hub-1", "hub-2", ""}[i%3], "")
	}
	d.Signal(syscall.SIGTERM)
	testkit.Eventually(t, "the listener to be closed", func() error {
		conn, err := net.Dial("tcp", d.Public)
		if err != nil {
			return nil
		}
		_ = conn.Close()
		return fmt.Errorf("%s takes connections", d.Public)
	})
	// The drain of so many clients takes more than a second, so the health listener is still open.
	if r, err := d.GetHealth(t.Context(), "/readyz"); err != nil {
		t.Logf("the daemon has ended: %v", err)
	} else if r.Status != http.StatusServiceUnavailable {
		t.Errorf("readyz says %d while the daemon stops", r.Status)
	}
	for _, ws := range sockets {
		if closed := ws.closed(t, websocket.CloseServiceRestart); closed.Text == "" {
			t.Fatal("a websocket was closed without a reason")
		}
	}
	if code := d.Exit(t); code != 0 {
		t.Errorf("it ended with %d", code)
	}
	if log := d.Err.String(); strings.Contains(log, "did not") {
		t.Errorf("the stop was not in order:\n%s", log)
	}
}
