package main_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/internal/await"
	"github.com/hubrelay/hubrelay/internal/redistest"
	"github.com/hubrelay/hubrelay/internal/testkit"
)

// retryingProducer publishes batches one at a time. It sends a batch to any node with an Idempotency-Key until one
// accepts it, as our errors advise.
type retryingProducer struct {
	hub   string
	name  string
	nodes []*atomic.Pointer[daemon]
	done  sync.WaitGroup
	stop  context.CancelFunc

	mu       sync.Mutex
	accepted map[string]string // object.id to notification id
	doubts   int
}

const batchOf = 3

func insist(t *testing.T, name string, nodes []*atomic.Pointer[daemon]) *retryingProducer {
	t.Helper()
	return startRetryingProducer(t, "hub-1", name, nodes, 0)
}

// startRetryingProducer publishes to a hub, with a pause between batches.
func startRetryingProducer(t *testing.T, hub, name string, nodes []*atomic.Pointer[daemon],
	pause time.Duration,
) *retryingProducer {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	p := &retryingProducer{hub: hub, name: name, nodes: nodes, stop: stop, accepted: make(map[string]string)}
	p.done.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			if err := p.batch(i); err != nil {
				t.Errorf("batch %d of %s: %v", i, name, err)
				return
			}
			await.Duration(ctx, pause)
		}
	})
	t.Cleanup(p.end)
	return p
}

func (p *retryingProducer) end() {
	p.stop()
	p.done.Wait()
}

func (p *retryingProducer) batch(i int) error {
	var names []string
	body := ""
	for j := range batchOf {
		names = append(names, fmt.Sprintf("%s-%d-%d", p.name, i, j))
		body += fmt.Sprintf(`{"topic":"job.created","object":{"id":%q}}`+"\n", names[j])
	}
	post := testkit.Request{
		Method: "POST", Key: opsKey, Hub: p.hub, ContentType: "application/x-ndjson", Body: body,
		Header: map[string]string{"Idempotency-Key": fmt.Sprintf("%s-%d", p.name, i)},
	}
	for try, deadline := i, time.Now().Add(patience); time.Now().Before(deadline); try++ {
		r, err := p.nodes[try%len(p.nodes)].Load().Try(context.Background(), post)
		if err != nil || r.Status == http.StatusServiceUnavailable {
			p.mu.Lock()
			p.doubts++
			p.mu.Unlock()
			continue
		}
		var answer struct{ Data struct{ IDs []string } }
		if err := json.Unmarshal([]byte(r.Body), &answer); err != nil || r.Status != http.StatusAccepted ||
			len(answer.Data.IDs) != batchOf {
			return fmt.Errorf("answered %d %s", r.Status, r.Body)
		}
		p.mu.Lock()
		for j, id := range answer.Data.IDs {
			p.accepted[names[j]] = id
		}
		p.mu.Unlock()
		return nil
	}
	return fmt.Errorf("not accepted within %s", patience)
}

// more returns a probe that waits for n more accepted batches.
func (p *retryingProducer) more(n int) func() error {
	count := func() int {
		p.mu.Lock()
		defer p.mu.Unlock()
		return len(p.accepted)
	}
	before := count()
	return func() error {
		if now := count(); now < before+n*batchOf {
			return fmt.Errorf("%s had %d accepted, now %d", p.name, before, now)
		}
		return nil
	}
}

// TestLongEverythingIsKilled kills daemons and Redis in turn while producers retry. Each notification is stored once
// and reaches the webhook.
func TestLongEverythingIsKilled(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	store := redisAt(t, server.Socket)
	hooks := receive(t, nil)
	text := daemonConfig{redis: fmt.Sprintf("url: %q", server.URL()), sinks: webhookSink("hook", hooks.url+"/", "")}
	nodes := []*atomic.Pointer[daemon]{{}, {}}
	for _, n := range nodes {
		n.Store(serve(t, text))
	}
	producers := []*retryingProducer{insist(t, "a", nodes), insist(t, "b", nodes)}
	for round := range 6 {
		for _, p := range producers {
			testkit.Eventually(t, "more to be accepted", p.more(10))
		}
		if round%3 == 2 {
			server.Kill()
			server.Restart()
			continue
		}
		nodes[round%2].Load().Kill()
		nodes[round%2].Store(serve(t, text))
	}
	accepted := map[string]string{}
	for _, p := range producers {
		testkit.Eventually(t, "more to be accepted", p.more(10))
		p.end()
		if p.doubts == 0 {
			t.Errorf("%s was never in doubt, so nothing was proved", p.name)
		}
		for name, id := range p.accepted {
			accepted[name] = id
		}
	}
	ids, data := logged(t, store)
	stored := map[string]string{}
	for i, name := range objectIDs(data) {
		if other, twice := stored[name]; twice {
			t.Errorf("%s is stored twice, as %s and %s", name, other, ids[i])
		}
		stored[name] = ids[i]
	}
	for name, id := range accepted {
		if stored[name] != id {
			t.Errorf("%s was accepted as %s, and is stored as %q", name, id, stored[name])
		}
	}
	if len(stored) != len(accepted) {
		t.Errorf("%d are stored, %d were accepted", len(stored), len(accepted))
	}
	testkit.Eventually(t, "every webhook", hooks.acceptedAll("/", ids))
	testkit.Eventually(t, "the queue to be empty", func() error { return expectQueueLength(t, store, 0) })
}
