package hub

import (
	"runtime"
	"slices"
	"testing"

	"github.com/gorilla/websocket"

	"github.com/hubrelay/hubrelay/relay"
)

// Clients receive everything once and in order from several goroutines, and are counted once. Closing clients receive
// nothing and are not counted.
func TestManyWalkersKeepTheOrder(t *testing.T) {
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
	b := &burst{}
	b.push(textFrame([]byte("{}")))
	if took := sendParallel(list, b); took != clients {
		t.Errorf("%d of %d clients took it", took, clients)
	}
	list[0].close(closeRequest{code: ClosePolicy, reason: "enough", closeReason: ClosedKeyInvalid})
	if took := sendParallel(list, b); took != clients-1 {
		t.Errorf("%d of %d clients took it, one of which was sent away", took, clients)
	}
}

// Goroutines that start late or never do not delay the broadcast, and access nothing.
func TestNobodyWaitsForLateWalkers(t *testing.T) {
	t.Parallel()
	const clients = 3*sendBatchSize + 1
	h, b := New(Options{}), &burst{}
	list := make([]*client, clients)
	for i := range list {
		list[i] = &client{hub: h, fd: -1, handshakePending: true}
	}
	b.push(textFrame([]byte("{}")))
	w := newParallelSend(list, b)
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
