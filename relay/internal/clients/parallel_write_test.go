package clients

import (
	"runtime"
	"slices"
	"testing"

	"github.com/gorilla/websocket"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/clients/frame"
)

// With several goroutines each client receives everything once, in order, and is counted once. A closing client
// receives nothing and is not counted.
func TestParallelWrite_KeepsOrder(t *testing.T) {
	t.Parallel()
	if runtime.GOMAXPROCS(0) == 1 {
		t.Skip("there is one processor, and one walker")
	}
	const clients, bursts, each = 3*minClientsPerGoroutine + 7, 30, 2
	n := startNode(t, Options{}, func(s *Subscription) { s.VisibilityKey = "all" })
	all := make([]*websocket.Conn, clients)
	for i := range all {
		all[i] = n.dial(t, "hub=h")
	}
	var want []int
	for range bursts {
		var burst []relay.Notification
		for range each {
			burst = append(burst, sized("h", "", "job.created", len(want), 20))
			want = append(want, len(want))
		}
		n.Broadcast(burst)
	}
	for i, conn := range all {
		if got := numbers(t, conn, len(want)); !slices.Equal(got, want) {
			t.Fatalf("client %d got %v", i, got)
		}
	}

	list := n.index.members("h")
	b := &frameBatch{}
	b.push(frame.New(&relay.Notification{Data: []byte("{}")}, 0, nil))
	if took := writeParallel(list, b); took != clients {
		t.Errorf("%d of %d clients took it", took, clients)
	}
	list[0].close(closeRequest{code: frame.ClosePolicy, reason: "enough", closeReason: ClosedKeyInvalid})
	if took := writeParallel(list, b); took != clients-1 {
		t.Errorf("%d of %d clients took it, one of which was sent away", took, clients)
	}
}

// Goroutines that start late or never delay no one and write nothing.
func TestParallelWrite_DoesNotWaitForLateGoroutines(t *testing.T) {
	t.Parallel()
	const clients = 3*sendBatchSize + 1
	h, b := New(Options{}), &frameBatch{}
	list := make([]*connection, clients)
	for i := range list {
		list[i] = &connection{server: h, fd: -1, handshakePending: true}
	}
	b.push(frame.New(&relay.Notification{Data: []byte("{}")}, 0, nil))
	w := newParallelWrite(list, b)
	w.run()
	if took := w.wait(); took != clients {
		t.Errorf("%d of %d clients took it", took, clients)
	}
	b.reset()
	w.run() // late
	for _, c := range list {
		if len(c.queue.frames) != 1 {
			t.Fatalf("%d frames are queued", len(c.queue.frames))
		}
	}
}
