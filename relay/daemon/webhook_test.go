package daemon

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/internal/embeddedredis"
	"github.com/hubrelay/hubrelay/internal/redistest"
	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/delivery/pipeline"
	"github.com/hubrelay/hubrelay/relay/internal/delivery/retry"
	"github.com/hubrelay/hubrelay/relay/internal/delivery/store"
	"github.com/hubrelay/hubrelay/relay/internal/dispatch"
	"github.com/hubrelay/hubrelay/relay/internal/eventlog"
	"github.com/hubrelay/hubrelay/relay/internal/queue"
	"github.com/hubrelay/hubrelay/relay/internal/queue/subscriber"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
	"github.com/hubrelay/hubrelay/sinks/sinktest"
	"github.com/hubrelay/hubrelay/sinks/webhook"
)

// receiver is the server of a subscriber. The function answer returns the status of the n-th attempt for an ID.
type receiver struct {
	t      *testing.T
	answer func(id string, attempt int) int

	mu       sync.Mutex
	attempts map[string]int
	accepted map[string]int // answered with 2xx
}

func (r *receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	body, _ := io.ReadAll(req.Body)
	id := req.Header.Get("webhook-id")
	if !hasValidSignature(req.Header, body) {
		r.t.Error("invalid signature")
	}
	if want := string(sinktest.Sample(id).Notifications[0].Data); string(body) != want {
		r.t.Errorf("body %s, want %s", body, want)
	}
	r.mu.Lock()
	r.attempts[id]++
	n := r.attempts[id]
	r.mu.Unlock()
	status := r.answer(id, n)
	if status < 300 {
		r.mu.Lock()
		r.accepted[id]++
		r.mu.Unlock()
	}
	w.WriteHeader(status)
}

func (r *receiver) count() (attempts, accepted int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, n := range r.attempts {
		attempts += n
	}
	return attempts, len(r.accepted)
}

// newReceiver starts a receiver and returns its URL.
func newReceiver(t *testing.T, answer func(id string, attempt int) int) (*receiver, string) {
	r := &receiver{t: t, answer: answer, attempts: map[string]int{}, accepted: map[string]int{}}
	srv := httptest.NewServer(r)
	t.Cleanup(srv.Close)
	return r, srv.URL + "/hook"
}

func openRedis(t testing.TB, server *redistest.Server) *stores {
	t.Helper()
	return openWith(t, redisconn.Options{URL: server.URL()})
}

func openWith(t testing.TB, o redisconn.Options) *stores {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
	defer cancel()
	c, err := redisconn.Open(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return newTestDaemon(slog.DiscardHandler).newStores(c)
}

func publish(t testing.TB, b *stores, from, n int) {
	t.Helper()
	var list []relay.Notification
	for i := range n {
		list = append(list, sinktest.Sample(fmt.Sprintf("%024x", from+i)).Notifications...)
	}
	if _, err := b.log.Append(context.Background(), eventlog.AppendRequest{
		Hub: "hub1", Notifications: list,
	}); err != nil {
		t.Fatal(err)
	}
}

// webhookKey is the key for the signatures of the webhooks.
var webhookKey = []byte("0123456789abcdef01234567")

// hasValidSignature reports whether the signature of a request conforms to Standard Webhooks 1.0.
func hasValidSignature(h http.Header, body []byte) bool {
	m := hmac.New(sha256.New, webhookKey)
	_, _ = fmt.Fprintf(m, "%s.%s.%s", h.Get("webhook-id"), h.Get("webhook-timestamp"), body)
	return h.Get("webhook-signature") == "v1,"+base64.StdEncoding.EncodeToString(m.Sum(nil))
}

func openWebhook(t testing.TB, url string) relay.Sink {
	t.Helper()
	c := &webhook.Config{
		URL: url, Secrets: []string{"whsec_" + base64.StdEncoding.EncodeToString(webhookKey)},
		AllowCIDRs: []string{"127.0.0.0/8", "::1"},
	}
	sink, err := webhook.Kind().Open(relay.SinkSettings{Name: "hook", Log: testkit.Log(t)}, c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = sink.Close() })
	return sink
}

// startNode runs everything that a daemon needs for one sink named "hook", with its own connections. stop may be
// called twice.
func startNode(t testing.TB, server *redistest.Server, number int, url string) (stop func()) {
	t.Helper()
	return startOn(t, openRedis(t, server), number, url)
}

// startOn is like startNode, but uses b and closes it.
func startOn(t testing.TB, b *stores, number int, url string) (stop func()) {
	t.Helper()
	sink := openWebhook(t, url)
	store := store.New(b.conn.Commands(), b.keys)
	scheduler := retry.NewScheduler(retry.Options{
		Retries: &store.Retries, States: &store.States, Grace: time.Minute,
	})
	retries := scheduler.Register("hook")
	handler, err := pipeline.New(pipeline.Options{
		Name: "hook", Wake: retries.Wake, Sink: sink, Store: store, Timeout: time.Minute,
		Schedule: pipeline.Schedule{Delays: []time.Duration{30 * time.Millisecond, 30 * time.Millisecond}},
	})
	if err != nil {
		t.Fatal(err)
	}
	retries.Attach(handler)
	dispatcher, err := dispatch.NewDispatcher(dispatch.Options{
		Partitions: 1, Log: b.log, Queues: b.queues, Lease: b.leases.Lease("dispatch:0", time.Second),
		Matcher: dispatch.NewMatcher([]dispatch.Sink{{Name: "hook", FromStart: true}}),
	})
	if err != nil {
		t.Fatal(err)
	}
	reader, err := subscriber.New(subscriber.Config{
		Commands: b.conn.Commands(), Readers: b.conn.Readers(), Group: "hubrelay",
		Consumer:    fmt.Sprint("node-", number),
		Streams:     func(sink string) []string { return queue.Keys(b.keys, sink) },
		MaxInFlight: func(string) int { return pipeline.DefaultConcurrency }, HandlerGrace: time.Minute,
	})
	if err != nil {
		t.Fatal(err)
	}
	router, err := queue.NewRouter(queue.RouterOptions{
		Handler: handler, Subscriber: reader, CloseTimeout: 5 * time.Second,
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	_, follow, err := b.log.TailFrom(ctx, 0)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() { _ = dispatcher.Run(ctx) })
	wg.Go(func() { _ = follow(ctx, dispatcher.Offer) })
	wg.Go(func() { _ = scheduler.Run(ctx) })
	wg.Go(func() { _ = router.Run(ctx) })
	stop = sync.OnceFunc(func() {
		cancel()
		wg.Wait()
		if err := reader.Close(); err != nil {
			t.Error(err)
		}
		closing, done := context.WithTimeout(context.Background(), 5*time.Second)
		defer done()
		if err := handler.Close(closing); err != nil {
			t.Error(err)
		}
		b.conn.Close()
	})
	t.Cleanup(stop)
	return stop
}

// pending returns the number of undelivered entries of the sink: queued or scheduled.
func pending(b *stores) int64 {
	queued, err := b.conn.Commands().XLen(context.Background(), queue.Key(b.keys, "hook", 0)).Result()
	retries, err2 := b.conn.Commands().ZCard(context.Background(), store.RetryKey(b.keys, "hook")).Result()
	if err != nil || err2 != nil {
		return -1
	}
	return queued + retries
}

// Two nodes share the sink, some responses are errors at first, and everything is accepted once.
func TestDelivery_LogToReceiver(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	b := openRedis(t, server)
	defer b.conn.Close()
	const n = 400
	r, url := newReceiver(t, func(id string, attempt int) int {
		if id[len(id)-1] == '0' && attempt < 3 {
			return 500
		}
		return 204
	})
	startNode(t, server, 1, url)
	startNode(t, server, 2, url)
	publish(t, b, 0, n/2)
	publish(t, b, n/2, n/2)
	testkit.WaitFor(t, "all deliveries", func() bool {
		_, accepted := r.count()
		return accepted == n && pending(b) == 0
	})
	r.mu.Lock()
	defer r.mu.Unlock()
	for id, attempts := range r.attempts {
		want := 1
		if id[len(id)-1] == '0' {
			want = 3
		}
		if attempts != want {
			t.Errorf("%s: %d attempts, want %d", id, attempts, want)
		}
	}
}

// Like TestDelivery_LogToReceiver, but in memory without a redis-server.
func TestDelivery_InMemory(t *testing.T) {
	t.Parallel()
	m, err := embeddedredis.Memory(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	b := openWith(t, redisconn.Options{Dialer: m.Dialer})
	defer b.conn.Close()
	r, url := newReceiver(t, func(id string, attempt int) int {
		switch {
		case id[len(id)-1] == '0' && attempt < 3:
			return 500
		case id[len(id)-1] == '1':
			return 500
		case id[len(id)-1] == '2':
			return 400
		}
		return 200
	})
	stop := startOn(t, openWith(t, redisconn.Options{Dialer: m.Dialer}), 1, url)
	publish(t, b, 0, 32)
	dead := func() int64 {
		n, _ := b.conn.Commands().XLen(context.Background(), store.DeadLettersKey(b.keys, "hook")).Result()
		return n
	}
	testkit.WaitFor(t, "all outcomes", func() bool {
		_, accepted := r.count()
		return accepted == 28 && dead() == 4 && pending(b) == 0
	})
	stop()
}

func TestDelivery_RejectionBecomesDeadLetter(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	b := openRedis(t, server)
	defer b.conn.Close()
	r, url := newReceiver(t, func(string, int) int { return 422 })
	startNode(t, server, 1, url)
	publish(t, b, 0, 3)
	dead := func() int64 {
		n, _ := b.conn.Commands().XLen(context.Background(), store.DeadLettersKey(b.keys, "hook")).Result()
		return n
	}
	testkit.WaitFor(t, "three dead letters", func() bool { return dead() == 3 && pending(b) == 0 })
	if attempts, _ := r.count(); attempts != 3 {
		t.Errorf("%d attempts, want 3", attempts)
	}
}

// A sink whose receiver is gone keeps its backlog. After the state is deleted, everything is delivered.
func TestDelivery_GoneSinkKeepsBacklog(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	b := openRedis(t, server)
	defer b.conn.Close()
	var gone sync.Map
	gone.Store("yes", true)
	r, url := newReceiver(t, func(string, int) int {
		if _, yes := gone.Load("yes"); yes {
			return 410
		}
		return 200
	})
	const n = 100
	publish(t, b, 0, n)
	stop := startNode(t, server, 1, url)
	disabled := func() bool {
		state, err := b.conn.Commands().HGet(context.Background(), store.StateKey(b.keys, "hook"), "state").Result()
		return err == nil && state == "disabled"
	}
	testkit.WaitFor(t, "disabled", disabled)
	testkit.WaitForValue(t, "all kept", n, func() int64 { return pending(b) })
	stop()
	before, _ := r.count()
	stop = startNode(t, server, 1, url)
	publish(t, b, n, n)
	testkit.WaitForValue(t, "the new ones are kept too", 2*n, func() int64 { return pending(b) })
	stop()
	if after, accepted := r.count(); after != before || accepted != 0 || !disabled() {
		t.Errorf("%d attempts after the restart, %d taken", after-before, accepted)
	}
	gone.Delete("yes")
	if err := b.conn.Commands().Del(context.Background(), store.StateKey(b.keys, "hook")).Err(); err != nil {
		t.Fatal(err)
	}
	startNode(t, server, 1, url)
	testkit.WaitFor(t, "all delivered", func() bool {
		_, accepted := r.count()
		return accepted == 2*n && pending(b) == 0
	})
}

// Redis is killed repeatedly while a node is busy. No accepted notification may be lost.
func TestDelivery_SurvivesRedisCrashes(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	b := openRedis(t, server)
	defer b.conn.Close()
	r, url := newReceiver(t, func(id string, attempt int) int {
		if id[len(id)-1] == '7' && attempt == 1 {
			return 503
		}
		return 200
	})
	startNode(t, server, 1, url)
	startNode(t, server, 2, url)
	const n, rounds = 300, 3
	for round := range rounds {
		publish(t, b, round*n, n)
		testkit.WaitFor(t, "some arrived", func() bool { _, accepted := r.count(); return accepted > round*n+n/4 })
		server.Restart()
		testkit.WaitFor(t, "redis is back", func() bool { return b.conn.Ready(context.Background()) == nil })
	}
	testkit.WaitFor(t, "all delivered", func() bool {
		_, accepted := r.count()
		return accepted == n*rounds && pending(b) == 0
	})
}

// BenchmarkLogToReceiver measures the delivery of a backlog to a receiver in this process that responds
// immediately.
func BenchmarkLogToReceiver(b *testing.B) {
	server := redistest.Start(b)
	bb := openRedis(b, server)
	defer bb.conn.Close()
	var accepted atomic.Int64
	srv := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		accepted.Add(1)
	}))
	defer srv.Close()
	for from := 0; from < b.N; from += 1000 {
		publish(b, bb, from, min(1000, b.N-from))
	}
	b.ResetTimer()
	start := time.Now()
	stop := startNode(b, server, 1, srv.URL)
	testkit.WaitFor(b, "all delivered", func() bool { return accepted.Load() >= int64(b.N) && pending(bb) == 0 })
	b.ReportMetric(float64(b.N)/time.Since(start).Seconds(), "deliveries/s")
	b.StopTimer()
	stop()
}
