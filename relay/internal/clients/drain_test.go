package clients

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/clients/frame"
)

func TestDrain(t *testing.T) {
	t.Parallel()
	for name, start := range plainAndTLS {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testDrain(t, startNodeOver(t, Options{}, nil, start))
		})
	}
}

func testDrain(t *testing.T, n *node) {
	var conns []*websocket.Conn
	for range 5 {
		conns = append(conns, n.dial(t, "account=*"))
	}
	n.Broadcast([]relay.Notification{event("h", "", "job.created", 1)})
	var readers sync.WaitGroup
	for _, conn := range conns {
		readers.Go(func() {
			numbers(t, conn, 1)
			wantClose(t, conn, frame.CloseRestart, "restarting")
		})
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := n.Close(ctx); err != nil {
		t.Errorf("Close: %v", err)
	}
	readers.Wait()
	for range conns {
		n.wantEnding(t, ClosedDrain)
	}
	_, answer, err := n.dialer().Dial(n.url("hub=h"), nil)
	if err == nil || answer.StatusCode != http.StatusServiceUnavailable {
		t.Fatalf("after Close: %v %v, want 503", answer, err)
	}
	_ = answer.Body.Close()
	if err := n.Close(ctx); err != nil {
		t.Errorf("the second Close: %v", err)
	}
}

// The close frames for hundreds of clients are spread. Clients that have not received one still get broadcasts.
func TestDrainIsSpread(t *testing.T) {
	t.Parallel()
	const clients = 300
	n := startNode(t, Options{DrainPace: 10 * time.Millisecond}, nil)
	told := make(chan bool, clients) // whether the last notification came before the close frame
	for range clients {
		conn := n.dial(t, "hub=h")
		go func() {
			last := false
			for {
				_, _, err := conn.ReadMessage()
				if err != nil {
					if !websocket.IsCloseError(err, frame.CloseRestart) {
						t.Errorf("the connection ended with %v", err)
					}
					told <- last
					return
				}
				last = true
			}
		}()
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	closed := make(chan error, 1)
	go func() { closed <- n.Close(ctx) }()
	if <-told {
		t.Error("the first got something that had not been sent")
	}
	began := time.Now()
	n.Broadcast([]relay.Notification{event("h", "", "job.created", 1)})
	sent := time.Since(began)
	later := 0
	for range clients - 1 {
		if <-told {
			later++
		}
	}
	if later == 0 && sent < time.Second { // a third of the drain
		t.Error("all were told at once")
	}
	if err := <-closed; err != nil {
		t.Error(err)
	}
}

// A drain ends when all clients have left, without waiting for its pace.
func TestDrainEndsEarly(t *testing.T) {
	t.Parallel()
	n := startNode(t, Options{DrainPace: time.Hour}, nil)
	conns := []*websocket.Conn{n.dial(t, "hub=h"), n.dial(t, "hub=h")}
	closed := make(chan error, 1)
	go func() { closed <- n.Close(context.Background()) }()
	for _, conn := range conns {
		_ = conn.Close()
		n.wantEnding(t, ClosedByClient)
	}
	select {
	case err := <-closed:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(patience):
		t.Error("the drain goes on though nobody is left")
	}
}

func TestDrainDue(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		passed, spread time.Duration
		want           int
	}{
		{0, 0, 100},
		{0, time.Second, 0},
		{time.Second / 2, time.Second, 50},
		{time.Second, time.Second, 100},
		{time.Hour, time.Second, 100},
		{0, -time.Second, 100},
	} {
		if got := clientsDue(100, tt.passed, tt.spread); got != tt.want {
			t.Errorf("%+v: %d", tt, got)
		}
	}
}

func TestDrain_DisconnectsHangingClients(t *testing.T) {
	t.Parallel()
	n := startNode(t, Options{QueueBytes: 64 << 20}, nil)
	n.dial(t, "hub=h")
	fillSocket(n.Server)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := n.Close(ctx); err == nil || !strings.Contains(err.Error(), "1 clients") {
		t.Errorf("Close returned %v", err)
	}
	n.wantEnding(t, ClosedDrain)
}

// fillMessages of 200 kB exceed the buffers of a socket that is not read.
const fillMessages = 80

// fillSocket broadcasts more to hub h than the sockets' buffers take.
func fillSocket(h *Server) {
	for i := range fillMessages {
		h.Broadcast(Batch{Notifications: []relay.Notification{sized("h", "", "job.created", i, 200_000)}})
	}
}

func TestCloseBeforeRun(t *testing.T) {
	t.Parallel()
	if err := New(Options{}).Close(t.Context()); err != nil {
		t.Error(err)
	}
}

// A hub that is closed in the middle of everything ends, and keeps nothing.
func TestCloseWhileBusy(t *testing.T) {
	t.Parallel()
	n := startNode(t, Options{PingInterval: 5 * time.Millisecond}, nil)
	stop := make(chan struct{})
	var busy sync.WaitGroup
	for range 2 {
		busy.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					n.Broadcast(
						[]relay.Notification{sized("h", "", "job.created", 1, 5000), event("h", "a", "job.created", 2)},
					)
				}
			}
		})
	}
	for i := range 8 {
		busy.Go(func() {
			for {
				conn, answer, err := websocket.DefaultDialer.Dial(n.url([]string{"hub=h", "account=a"}[i%2]), nil)
				if err != nil {
					return // closed
				}
				_ = answer.Body.Close()
				for range 20 {
					if _, _, err := conn.ReadMessage(); err != nil {
						break
					}
				}
				_ = conn.Close()
			}
		})
	}
	for range 200 {
		<-n.connected
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := n.Close(ctx); err != nil {
		t.Error(err)
	}
	close(stop)
	busy.Wait()
	if n.Clients() != 0 || n.index.size() != 0 {
		t.Error("something stays in the server")
	}
	for _, slot := range n.wheel.slots {
		if len(slot) != 0 {
			t.Error("a client stays in the wheel")
		}
	}
}
