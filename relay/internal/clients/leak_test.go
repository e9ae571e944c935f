package clients

import (
	"fmt"
	"net"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/clients/frame"
)

// footprint counts the goroutines and descriptors of the process.
type footprint struct{ goroutines, files int }

func takeFootprint(t *testing.T) footprint {
	t.Helper()
	files, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Skip("no /proc here:", err)
	}
	return footprint{runtime.NumGoroutine(), len(files)}
}

// A thousand clients connect and leave in all ways, and leave no goroutine and no descriptor. Not parallel: other
// tests would change the counts.
func TestServer_LeaksNothing(t *testing.T) {
	const rounds, each = 10, 100
	n := startNode(t, Options{QueueBytes: 64 << 10, CloseTimeout: 100 * time.Millisecond}, nil)
	comeAndGo(t, n, 10)
	before := takeFootprint(t)
	for range rounds {
		comeAndGo(t, n, each)
	}
	testkit.Eventually(t, "the system to close all sockets", func() error {
		if now := takeFootprint(t); now.goroutines > before.goroutines || now.files > before.files {
			return fmt.Errorf("before %+v, after %+v", before, now)
		}
		return nil
	})
}

// comeAndGo connects clients, disconnects each in another way once all are connected, and waits until the hub has
// none.
func comeAndGo(t *testing.T, n *node, clients int) {
	t.Helper()
	var all []*websocket.Conn
	for i := range clients {
		all = append(all, n.dial(t, fmt.Sprintf("hub=h%d", i%4)))
	}
	var leaving sync.WaitGroup
	for i, conn := range all {
		leaving.Go(func() {
			tcp, _ := conn.NetConn().(*net.TCPConn)
			defer func() { _ = tcp.Close() }()
			switch i % 4 {
			case 0: // in order
				_ = conn.WriteControl(
					websocket.CloseMessage,
					websocket.FormatCloseMessage(websocket.CloseNormalClosure, ""),
					time.Now().Add(patience),
				)
				_, _, _ = conn.ReadMessage()
			case 1: // by a reset
				_ = tcp.SetLinger(0)
			case 2: // against the protocol
				_, _ = tcp.Write([]byte{0xff, 0xff})
				_, _, _ = conn.ReadMessage()
			default: // reads nothing, until it is cut off
				n.flood("h3")
			}
		})
	}
	leaving.Wait()
	for range clients {
		<-n.connected
		select {
		case <-n.ended:
		case <-time.After(patience):
			t.Fatal("a client does not end")
		}
	}
	testkit.WaitForValue(t, "no place is taken", 0, func() int { return n.taken() })
	if left := n.taken(); left > 0 || n.Clients() > 0 {
		t.Fatalf("%d clients and %d places are left", n.Clients(), left)
	}
}

// taken is how many places are.
func (n *node) taken() int {
	n.limits.mu.Lock()
	defer n.limits.mu.Unlock()
	return n.limits.taken
}

// flood broadcasts to a hub until nobody is left in it.
func (n *node) flood(hub string) {
	for {
		if len(n.index.members(hub)) == 0 {
			return
		}
		n.Broadcast([]relay.Notification{sized(hub, "", "job.created", 0, 100_000)})
	}
}

// What waits for a client that reads nothing stays within its bound, and goes when the client is sent away.
func TestWriteQueue_StaysWithinLimit(t *testing.T) {
	t.Parallel()
	const bound, size = 256 << 10, 10_000
	n := startNode(t, Options{QueueBytes: bound, CloseTimeout: patience}, nil)
	conn := n.dial(t, "hub=h")
	most := 0
	for {
		n.Broadcast([]relay.Notification{sized("h", "", "job.created", 0, size)})
		n.mu.Lock()
		var c *connection
		for one := range n.connections {
			c = one
		}
		n.mu.Unlock()
		c.mu.Lock()
		waiting, gone := c.queue.size, c.state != stateLive
		c.mu.Unlock()
		if gone {
			break
		}
		most = max(most, waiting)
	}
	if most > bound || most < bound-2*size {
		t.Errorf("%d bytes waited, the bound is %d", most, bound)
	}
	wantClose(t, conn, frame.CloseSlowConsumer, "slow")
	n.wantEnding(t, ClosedSlowConsumer)
}
