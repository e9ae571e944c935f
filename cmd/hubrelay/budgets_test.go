//go:build unix

package main_test

import (
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/internal/redistest"
	"github.com/hubrelay/hubrelay/internal/testkit"
)

// TestBudgets floods the relay with each operation of a client. During each flood another account publishes, gets tokens and
// receives its stream, and the relay stays ready. Afterwards the flood has left a bounded number of keys in Redis and of
// goroutines. SECURITY.md lists the operations.
func TestBudgets(t *testing.T) {
	t.Parallel()
	const (
		flood   = 1000 // fails if the relay answers fewer than 2 requests per second
		hostile = "hostile-secret-0123456789"
		good    = "good-secret-0123456789"
		perSec  = 1   // quotas of a key
		burst   = 100 // above the requests of the good key
	)
	server := redistest.Start(t)
	store := redisAt(t, server.Socket)
	d := serve(t, daemonConfig{
		redis: fmt.Sprintf("url: %q", server.URL()),
		keys: fmt.Sprintf("    - {name: hostile, key: %s, account_id: a1, hubs: [hub-1], capabilities: "+
			"[notifications-publish, containers-instances-migrate]}\n"+
			"    - {name: good, key: %s, account_id: a2, hubs: [hub-2], capabilities: [notifications-publish]}\n",
			hostile, good),
		env: []string{
			fmt.Sprintf("HUBRELAY_QUOTAS__REQUESTS__PER_SECOND=%d", perSec),
			fmt.Sprintf("HUBRELAY_QUOTAS__REQUESTS__BURST=%ds", burst/perSec),
			fmt.Sprintf("HUBRELAY_QUOTAS__KEY__NOTIFICATIONS=%d", perSec),
			fmt.Sprintf("HUBRELAY_QUOTAS__KEY__BURST=%ds", burst/perSec),
		},
	})
	tasks := "/v1/containers/c/instances/i/tasks"
	get := testkit.Request{Method: "GET", Key: hostile, Hub: "hub-1"}
	post := testkit.Request{Method: "POST", Key: hostile, Hub: "hub-1", ContentType: "application/json", Body: plain}
	with := func(r testkit.Request, change func(*testkit.Request)) testkit.Request {
		change(&r)
		return r
	}
	token := d.Token(t, hostile, "hub-1")
	for _, op := range []struct {
		name    string
		request testkit.Request
		limited bool // most requests are rejected with 429
	}{
		{"issue tokens", get, true},
		{"open event streams with a key", with(get, func(r *testkit.Request) {
			r.Header = map[string]string{"Accept": "text/event-stream", "Last-Event-ID": "invalid"}
		}), true},
		{"open event streams with a token", with(get, func(r *testkit.Request) {
			r.Key, r.Hub, r.Path = "", "", notificationsPath+"?token="+token
			r.Header = map[string]string{"Accept": "text/event-stream", "Last-Event-ID": "invalid"}
		}), true},
		{"revoke unknown tokens", testkit.Request{Method: "DELETE", Path: notificationsPath + "/token?token=unknown"}, true},
		{"use unknown keys", with(get, func(r *testkit.Request) { r.Key = "unknown" }), true},
		{"list tasks", with(get, func(r *testkit.Request) { r.Path = tasks }), true},
		{"migrate", with(post, func(r *testkit.Request) { r.Path = tasks }), true},
		{"publish", post, true},
		{"publish invalid events", with(post, func(r *testkit.Request) { r.Body = "{}" }), false},
		{"report changed keys", with(post, func(r *testkit.Request) {
			r.Body = `{"topic":"hub.api_key.state.changed","object":{"id":"k"}}`
		}), true},
		{"request unknown paths", with(get, func(r *testkit.Request) { r.Path = "/v1/unknown" }), false},
	} {
		stream := d.connect(t, good, "hub-2", "")
		keysBefore := store.DBSize(t.Context()).Val()
		goroutines := d.Metric(t, "go_goroutines")
		start := time.Now()
		statuses := floodWith(t, d, op.request, flood, func() {
			d.Publish(t, "hub-2", "application/json", `{"topic":"job.created","context":{"account_id":"a2"}}`, nil)
			d.Token(t, good, "hub-2")
		})
		stream.wait(t, 1)
		if op.limited && statuses[http.StatusTooManyRequests] < flood/4 {
			t.Errorf("%s: got %v, want many 429", op.name, statuses)
		}
		for status := range statuses {
			if status >= 500 && status != http.StatusServiceUnavailable {
				t.Errorf("%s: got %v, want no internal error", op.name, statuses)
			}
		}
		testkit.Eventually(t, op.name+": the relay to be ready", d.Ready(http.StatusOK))
		most := int64(2*(burst+perSec*time.Since(start).Seconds())) + 20
		if grown := store.DBSize(t.Context()).Val() - keysBefore; grown > most {
			t.Errorf("%s: left %d keys in Redis, want at most %d", op.name, grown, most)
		}
		testkit.Eventually(t, op.name+": the goroutines to end", func() error {
			if n := d.Metric(t, "go_goroutines"); n > goroutines+50 {
				return fmt.Errorf("got %v, before %v", n, goroutines)
			}
			return nil
		})
	}
}

// floodWith sends the request n times from eight connections, and calls runDuring after the first responses. It returns the
// number of responses by status.
func floodWith(t *testing.T, d *daemon, r testkit.Request, n int, runDuring func()) map[int]int {
	t.Helper()
	const workers = 8
	var mu sync.Mutex
	var group sync.WaitGroup
	var sent atomic.Int64
	statuses := make(map[int]int)
	for range workers {
		group.Go(func() {
			for range n / workers {
				reply, err := d.Try(t.Context(), r)
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				statuses[reply.Status]++
				mu.Unlock()
				sent.Add(1)
			}
		})
	}
	testkit.WaitFor(t, "the flood", func() bool { return sent.Load() > workers || t.Failed() })
	runDuring()
	group.Wait()
	return statuses
}
