package main_test

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hubrelay/hubrelay/internal/redistest"
	"github.com/hubrelay/hubrelay/internal/testkit"
)

// TestLongTwoNodes runs two daemons on one Redis. Everything arrives once. When one is killed, nothing is lost, and
// only its attempts in progress repeat.
func TestLongTwoNodes(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	store := redisAt(t, server.Socket)
	gate := newGate()
	t.Cleanup(gate.open)
	hooks := receive(t, func(w http.ResponseWriter, _ hook) {
		gate.pass()
		w.WriteHeader(http.StatusNoContent)
	})
	text := daemonConfig{redis: fmt.Sprintf("url: %q", server.URL()), sinks: webhookSink("hook", hooks.url+"/", ", timeout: 40s")}
	nodes := []*daemon{serve(t, text), serve(t, text)}
	sockets := []*socket{nodes[0].connect(t, opsKey, "hub-1", ""), nodes[1].connect(t, opsKey, "hub-1", "")}

	var ids []string
	spread := func(requests int) {
		t.Helper()
		for i := range requests {
			ids = append(ids, nodes[i%2].Publish(t, "hub-1", "application/x-ndjson", lines(50), nil)...)
		}
	}
	spread(44)
	testkit.Eventually(t, "every webhook", hooks.acceptedAll("/", ids))
	for id, n := range hooks.counts() {
		if n != 1 {
			t.Errorf("%s was delivered %d times", id, n)
		}
	}
	for i, s := range sockets {
		if got := objectIDs(s.wait(t, len(ids))); !slices.Equal(got, ids) {
			t.Errorf("the socket of node %d got %d events that are not the %d published, in order", i, len(got),
				len(ids))
		}
	}

	gate.shut()
	spread(20)
	inHand := settle(t, store, hooks)
	nodes[0].Kill()
	gate.open()
	ids = append(ids, nodes[1].Publish(t, "hub-1", "application/x-ndjson", lines(50), nil)...)
	testkit.Eventually(t, "every webhook after the kill", hooks.acceptedAll("/", ids))
	testkit.Eventually(t, "the queue to be empty", func() error { return expectQueueLength(t, store, 0) })
	twice := 0
	for id, n := range hooks.counts() {
		if n > 1 {
			twice++
		}
		if n > 2 || n == 2 && !inHand[id] {
			t.Errorf("%s was delivered %d times; in progress at the kill: %v", id, n, inHand[id])
		}
	}
	if twice == 0 {
		t.Error("nothing was delivered twice, so the killed node had no attempts in progress")
	}
	if got := objectIDs(sockets[1].wait(t, len(ids))); !slices.Equal(got, ids) {
		t.Errorf("the socket of the other node got %d events that are not the %d published, in order", len(got),
			len(ids))
	}
}

// TestLongSlowReceiver delays each response longer than the time after which another node takes over. The nodes must
// keep their claims alive.
func TestLongSlowReceiver(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	hooks := receive(t, func(w http.ResponseWriter, _ hook) {
		<-time.After(18 * time.Second)
		w.WriteHeader(http.StatusNoContent)
	})
	text := daemonConfig{redis: fmt.Sprintf("url: %q", server.URL()), sinks: webhookSink("hook", hooks.url+"/",
		", timeout: 30s")}
	nodes := []*daemon{serve(t, text), serve(t, text)}
	ids := append(nodes[0].Publish(t, "hub-1", "application/x-ndjson", lines(10), nil),
		nodes[1].Publish(t, "hub-1", "application/x-ndjson", lines(10), nil)...)
	testkit.Eventually(t, "every webhook", hooks.acceptedAll("/", ids))
	store := redisAt(t, server.Socket)
	testkit.Eventually(t, "the queue to be empty", func() error { return expectQueueLength(t, store, 0) })
	for id, n := range hooks.counts() {
		if n != 1 {
			t.Errorf("%s was delivered %d times", id, n)
		}
	}
}

// settle waits until both nodes make as many attempts as they can and all answered deliveries have left the queue. It
// returns the ids of the attempts in progress.
func settle(t *testing.T, store *redis.Client, hooks *receiver) map[string]bool {
	t.Helper()
	var inHand map[string]bool
	testkit.Eventually(t, "both nodes to have their hands full", func() error {
		inHand = hooks.unanswered()
		if len(inHand) < 32 {
			return fmt.Errorf("%d requests are in progress", len(inHand))
		}
		pending, err := store.XPending(t.Context(), "hubrelay:queue:hook:{0}", "hubrelay").Result()
		if err == nil && len(pending.Consumers) != 2 {
			err = fmt.Errorf("pending are %v", pending.Consumers)
		}
		return err
	})
	testkit.Eventually(t, "the acks to be written", func() error {
		answered := 0
		for _, h := range hooks.of("/") {
			if h.status != 0 {
				answered++
			}
		}
		ids, _ := logged(t, store)
		return expectQueueLength(t, store, len(ids)-answered)
	})
	return inHand
}

// expectQueueLength returns nil if the queue of the sink has n entries.
func expectQueueLength(t *testing.T, store *redis.Client, n int) error {
	t.Helper()
	got, err := store.XLen(t.Context(), "hubrelay:queue:hook:{0}").Result()
	if err == nil && got != int64(n) {
		err = fmt.Errorf("%d entries are in the queue, want %d", got, n)
	}
	return err
}

// gate blocks requests while it is closed.
type gate struct {
	mu   sync.Mutex
	wait chan struct{}
}

func newGate() *gate {
	g := &gate{wait: make(chan struct{})}
	close(g.wait)
	return g
}

func (g *gate) pass() {
	g.mu.Lock()
	wait := g.wait
	g.mu.Unlock()
	<-wait
}

func (g *gate) shut() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.wait = make(chan struct{})
}

func (g *gate) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	select {
	case <-g.wait:
	default:
		close(g.wait)
	}
}

// TestPartitions_RejectsChange rejects a number of partitions that differs from the stored data.
func TestPartitions_RejectsChange(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	one := serve(t, daemonConfig{redis: fmt.Sprintf("url: %q, partitions: 4", server.URL())})
	ws := one.connect(t, opsKey, "", "")
	var ids []string
	for i := range 12 {
		ids = append(ids, one.Publish(t, fmt.Sprintf("hub-%d", i), "application/json", plain, nil)...)
	}
	testkit.Eventually(t, "everything of all partitions", ws.receivedAll(ids))
	file := writeFile(t, tempDir(t), "hubrelay.yaml",
		daemonConfig{redis: fmt.Sprintf("url: %q, partitions: 2", server.URL())}.renderYAML())
	_, errOut, code := call(t, nil, "", "serve", "-c", file)
	if err := errors.Join(hasAll(errOut, "partitions", "4", "2")...); code != 1 || err != nil {
		t.Errorf("it ended with %d, %v:\n%s", code, err, errOut)
	}
}
