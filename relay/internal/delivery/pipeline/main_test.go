package pipeline

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/hubrelay/hubrelay/internal/keyspace"
	"github.com/hubrelay/hubrelay/internal/redistest"
	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/delivery/admission"
	"github.com/hubrelay/hubrelay/relay/internal/delivery/retry"
	"github.com/hubrelay/hubrelay/relay/internal/delivery/store"
	"github.com/hubrelay/hubrelay/relay/internal/replay"
)

func TestMain(m *testing.M) {
	testkit.RunParallel(8) // the tests wait most of the time
	goleak.VerifyTestMain(m)
}

// The number of notification IDs that Redis keeps, as in package store.
const (
	digestDedupSize = 4096
	batchDedupSize  = 8192
	makeDuePage     = 1000 // deliveries
)

// testKeys are the keys of a relay without a cluster.
func testKeys() keyspace.Space {
	k, err := keyspace.New("hubrelay", 1, false)
	if err != nil {
		panic(err)
	}
	return k
}

// fakeSink returns the results of its function and records the attempts.
type fakeSink struct {
	answer func(ctx context.Context, d relay.Delivery) error

	mu     sync.Mutex
	got    []relay.Delivery
	most   int64
	now    atomic.Int64
	closed int
}

func (f *fakeSink) Deliver(ctx context.Context, d relay.Delivery) error {
	n := f.now.Add(1)
	defer f.now.Add(-1)
	f.mu.Lock()
	f.got = append(f.got, d)
	f.most = max(f.most, n)
	f.mu.Unlock()
	return f.answer(ctx, d)
}

func (f *fakeSink) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed++
	return nil
}

func (f *fakeSink) attempts(id string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := 0
	for _, d := range f.got {
		if d.ID == id || id == "" {
			n++
		}
	}
	return n
}

func answers(errs ...error) func(context.Context, relay.Delivery) error {
	var n atomic.Int64
	return func(context.Context, relay.Delivery) error {
		i := n.Add(1) - 1
		return errs[min(int(i), len(errs)-1)]
	}
}

var errFar = &relay.ResponseError{Status: 500, Body: "s3rver error <€>"}

type env struct {
	t      *testing.T
	server *redistest.Server
	client redis.UniversalClient
	store  *store.Store
	// wrap replaces a pipeline for the scheduler. It may be nil.
	wrap func(*Pipeline) retry.Sink
	// nearlyFull is the memory of Redis for replays.
	nearlyFull bool
}

func newEnv(t *testing.T) *env {
	t.Helper()
	e := &env{t: t, server: redistest.Start(t)}
	e.client = redis.NewClient(&redis.Options{
		Network: "unix", Addr: e.server.Socket, MaxRetries: -1, Protocol: 2, DisableIdentity: true, PoolSize: 64,
	})
	t.Cleanup(func() { _ = e.client.Close() })
	e.store = store.New(e.client, testKeys())
	return e
}

// pipeline returns a pipeline named "s". It is closed at the end of the test.
func (e *env) pipeline(sink relay.Sink, change func(*Options)) *Pipeline {
	e.t.Helper()
	o := Options{
		Name: "s", Sink: sink, Store: e.store, Timeout: 10 * time.Second,
		Schedule: Schedule{
			Delays: []time.Duration{20 * time.Millisecond, 20 * time.Millisecond, 20 * time.Millisecond},
			MaxAge: 10 * time.Hour,
		},
	}
	o.probeDelay = time.Millisecond
	if change != nil {
		change(&o)
	}
	var handle atomic.Pointer[retry.Handle]
	o.Wake = func(after time.Duration) {
		if h := handle.Load(); h != nil {
			h.Wake(after)
		}
	}
	p, err := New(o)
	if err != nil {
		e.t.Fatal(err)
	}
	testWakes.Store(p, &handle)
	e.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
		defer cancel()
		if err := p.Close(ctx); err != nil {
			e.t.Error(err)
		}
	})
	return p
}

// retries runs a node with the pipelines until the test ends or stop is called.
func (e *env) retries(pipelines ...*Pipeline) (stop func()) {
	e.t.Helper()
	_, stop = e.node(pipelines...)
	return stop
}

// testNode is the part of a daemon that runs pipelines.
type testNode struct {
	*retry.Scheduler
	*Reporter
	handles []*retry.Handle
}

func (e *env) newNode(grace time.Duration, pipelines ...*Pipeline) *testNode {
	n := &testNode{
		Scheduler: retry.NewScheduler(retry.Options{Retries: &e.store.Retries, States: &e.store.States, Grace: grace}),
		Reporter:  NewReporter(&e.store.Stats, nil),
	}
	for _, p := range pipelines {
		n.add(p, e.wrap)
	}
	return n
}

// add attaches a pipeline, whose Wake did nothing before.
func (n *testNode) add(p *Pipeline, wrap func(*Pipeline) retry.Sink) {
	h := n.Register(p.Name())
	if wake, ok := testWakes.Load(p); ok {
		handle, _ := wake.(*atomic.Pointer[retry.Handle])
		handle.Store(h)
	}
	n.handles = append(n.handles, h)
	n.Add(p)
	if wrap != nil {
		h.Attach(wrap(p))
		return
	}
	h.Attach(p)
}

func (n *testNode) run(ctx context.Context) {
	var reporting sync.WaitGroup
	reporting.Go(func() { _ = n.Reporter.Run(ctx) })
	_ = n.Scheduler.Run(ctx)
	reporting.Wait()
}

// testWakes contains the handle of each test pipeline, which is created before its node.
var testWakes sync.Map

func (e *env) node(pipelines ...*Pipeline) (n *testNode, stop func()) {
	e.t.Helper()
	n = e.newNode(time.Second, pipelines...)
	for _, p := range pipelines {
		if _, err := p.WaitEnabled(e.t.Context()); err != nil {
			e.t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		n.run(ctx)
	}()
	stop = sync.OnceFunc(func() { cancel(); <-done })
	e.t.Cleanup(stop)
	return n, stop
}

// handleDelivery passes a fresh delivery to a pipeline.
func handleDelivery(ctx context.Context, p *Pipeline, d relay.Delivery) error {
	_, err := p.Handle(ctx, d)
	return err
}

func delivery(id string) relay.Delivery {
	return relay.Delivery{ID: id, Attempt: 1, Notifications: []relay.Notification{{
		ID: id, Topic: "container.error", Hub: "h1", Account: "a1", Cursor: "5-1",
		Data: []byte(`{"topic" : "container.error","n":12345678901234567890,"s":"<€&>\u2028"}`),
	}}}
}

func (e *env) scheduledCount() int64 {
	n, err := e.client.ZCard(context.Background(), "hubrelay:retry:s").Result()
	m, err2 := e.client.HLen(context.Background(), "hubrelay:records:s").Result()
	k, err3 := e.client.ZCard(context.Background(), "hubrelay:arrivals:s").Result()
	if err = errors.Join(err, err2, err3); err != nil {
		e.t.Fatal(err)
	}
	return max(n, m, k)
}

func (e *env) resume() error {
	_, err := e.store.States.Resume(e.t.Context(), "s")
	return err
}

func (e *env) deadLetters() []map[string]any {
	list, err := e.client.XRange(context.Background(), "hubrelay:deadletters:s", "-", "+").Result()
	if err != nil {
		e.t.Fatal(err)
	}
	var out []map[string]any
	for _, m := range list {
		out = append(out, m.Values)
	}
	return out
}

func attemptsOf(t *testing.T, letter map[string]any) []store.Attempt {
	t.Helper()
	var list []store.Attempt
	if err := json.Unmarshal([]byte(fmt.Sprint(letter["attempts"])), &list); err != nil {
		t.Fatal(err)
	}
	return list
}

// poll polls the retry queue of "s".
func (e *env) poll(maxClaims int, lease time.Duration) store.PollResult {
	request := store.PollRequest{Sink: "s", MaxClaims: maxClaims, Lease: lease}
	return e.store.Retries.Poll(e.t.Context(), []store.PollRequest{request})[0]
}

func (e *env) replay(ctx context.Context, log replay.Log, q replay.Request) (replay.Result, error) {
	return replay.Replayer{
		Log: log, Retries: &e.store.Retries, States: &e.store.States, Memory: e,
	}.Replay(ctx, q)
}

// Measure implements [replay.Memory].
func (e *env) Measure(context.Context) {}

// IsNearlyFull implements [replay.Memory].
func (e *env) IsNearlyFull() bool { return e.nearlyFull }

// reporterOf returns a reporter of one pipeline.
func reporterOf(e *env, p *Pipeline) *Reporter {
	r := NewReporter(&e.store.Stats, nil)
	r.Add(p)
	return r
}

// endAttempt ends an attempt of p with a result.
func endAttempt(t *testing.T, p *Pipeline, result error) {
	t.Helper()
	var permit admission.Permit
	if err := p.admission.Acquire(t.Context(), &permit); err != nil {
		t.Fatal(err)
	}
	permit.Done(t.Context(), true, result)
}

// failDestination opens the circuit breaker of p.
func failDestination(t *testing.T, p *Pipeline) {
	t.Helper()
	for range admission.FailureThreshold {
		endAttempt(t, p, errFar)
	}
}

// replayAllDeadLetters replays all dead letters of "s".
func (e *env) replayAllDeadLetters(o store.ReplayOptions) (store.ChangeResult, error) {
	return e.store.DeadLetters.ReplaySelected(e.t.Context(), "s", store.Selection{}, o)
}

// replayDeadLetters replays dead letters of "s".
func (e *env) replayDeadLetters(o store.ReplayOptions, ids ...string) (store.ChangeResult, error) {
	return e.store.DeadLetters.Replay(e.t.Context(), "s", ids, o)
}
