package pipeline

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/delivery/retry"
	"github.com/hubrelay/hubrelay/relay/internal/delivery/store"
)

func (e *env) stateOf(p *Pipeline) store.State {
	p.state.mu.Lock()
	defer p.state.mu.Unlock()
	return p.state.current
}

// changesOnly reads the state of its sink only after a change, and not regularly.
type changesOnly struct {
	*Pipeline
	isChanged atomic.Bool
}

func (c *changesOnly) OnChange() {
	c.isChanged.Store(true)
	c.Pipeline.OnChange()
}

func (c *changesOnly) Poll(due, withState bool) store.PollRequest {
	return c.Pipeline.Poll(due, withState && c.isChanged.Swap(false))
}

func TestPause_AllNodesFollow(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	sink := &fakeSink{answer: answers(errFar, nil)}
	e.wrap = func(p *Pipeline) retry.Sink { return &changesOnly{Pipeline: p} }
	one, other := e.pipeline(sink, nil), e.pipeline(sink, nil)
	for _, p := range []*Pipeline{one, other} {
		e.retries(p)
	}
	stops, err := other.WaitEnabled(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := e.store.States.Pause(t.Context(), "s"); err != nil {
		t.Fatal(err)
	}
	testkit.WaitFor(
		t,
		"both nodes pause",
		func() bool { return e.stateOf(one) == store.StatePaused && e.stateOf(other) == store.StatePaused },
	)
	select {
	case <-stops:
	default:
		t.Error("the channel of WaitEnabled is not closed by a pause")
	}
	if err := handleDelivery(t.Context(), one, delivery("d1")); !errors.Is(err, ErrDisabled) {
		t.Errorf("Handle while paused: %v", err)
	}
	e.scheduleDue(2) // due at once, but the sink is paused
	if _, err := e.store.States.Resume(t.Context(), "s"); err != nil {
		t.Fatal(err)
	}
	testkit.WaitForValue(t, "scheduled deliveries are delivered", 0, func() int64 { return e.scheduledCount() })
	testkit.WaitFor(
		t,
		"both nodes go on",
		func() bool { return e.stateOf(one) == store.StateActive && e.stateOf(other) == store.StateActive },
	)
}

func TestPause_SurvivesRestart(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	ctx := t.Context()
	if err := e.store.States.Pause(ctx, "s"); err != nil {
		t.Fatal(err)
	}
	before, err := e.store.States.Get(ctx, "s")
	if err != nil || before.State != store.StatePaused || before.Reason == "" || before.Since.IsZero() {
		t.Fatalf("%+v, %v", before, err)
	}
	// Neither a destination that is gone nor another configuration ends it.
	p := e.pipeline(&fakeSink{answer: answers(relay.Gone(errFar))}, func(o *Options) { o.Fingerprint = "new" })
	p.state.disable(ctx, relay.Gone(errFar))
	if err := p.Refresh(ctx); err != nil || e.stateOf(p) != store.StatePaused {
		t.Errorf("%v, %v", e.stateOf(p), err)
	}
	if _, err := e.store.States.Enable(ctx, "s", "old"); err != nil {
		t.Fatal(err)
	}
	if err := e.store.States.Pause(ctx, "s"); err != nil {
		t.Fatal(err)
	}
	if after, err := e.store.States.Get(ctx, "s"); err != nil || after != before {
		t.Errorf("%+v became %+v, %v", before, after, err)
	}
	if _, err := e.store.States.Resume(ctx, "s"); err != nil {
		t.Fatal(err)
	}
	if after, err := e.store.States.Get(ctx, "s"); err != nil || after.State != store.StateActive ||
		!after.Since.IsZero() {
		t.Errorf("%+v, %v", after, err)
	}
}

func TestPause_DisabledSink(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	ctx := t.Context()
	if _, err := e.store.States.Disable(ctx, "s", "gone", "old", time.Now()); err != nil {
		t.Fatal(err)
	}
	if err := e.store.States.Pause(ctx, "s"); err != nil {
		t.Fatal(err)
	}
	p := e.pipeline(&fakeSink{answer: answers(nil)}, func(o *Options) { o.Fingerprint = "new" })
	if err := p.Refresh(ctx); err != nil || e.stateOf(p) != store.StatePaused {
		t.Errorf("%v, %v", e.stateOf(p), err)
	}
}

// A read that started before a pause and ends after it does not end the pause on this node.
func TestPause_StaleRead(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	ctx := t.Context()
	p := e.pipeline(&fakeSink{answer: answers(nil)}, nil)
	asked := p.state.readVersion()
	before, err := e.store.States.Get(ctx, "s")
	if err != nil {
		t.Fatal(err)
	}
	if err := e.store.States.Pause(ctx, "s"); err != nil {
		t.Fatal(err)
	}
	if err := p.Refresh(ctx); err != nil {
		t.Fatal(err)
	}
	if err := p.state.applyStored(ctx, before, asked); err != nil || e.stateOf(p) != store.StatePaused {
		t.Errorf("%v, %v", e.stateOf(p), err)
	}
}

func TestPause_RunningAttemptsFinish(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	begun, end := make(chan struct{}), make(chan struct{})
	sink := &fakeSink{answer: func(context.Context, relay.Delivery) error {
		close(begun)
		<-end
		return nil
	}}
	p := e.pipeline(sink, func(o *Options) { o.Timeout = 20 * time.Second })
	e.retries(p)
	result := make(chan error, 1)
	go func() { result <- handleDelivery(context.Background(), p, delivery("d1")) }()
	<-begun
	if err := e.store.States.Pause(t.Context(), "s"); err != nil {
		t.Fatal(err)
	}
	testkit.WaitForValue(t, "paused", store.StatePaused, func() store.State { return e.stateOf(p) })
	close(end)
	if err := <-result; err != nil {
		t.Error(err)
	}
}

func TestStats_ReadAndForget(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	ctx := t.Context()
	e.scheduleDue(3)
	e.addDeadLetters(t, "d1")
	if err := e.store.States.Pause(ctx, "s"); err != nil {
		t.Fatal(err)
	}
	f, err := e.store.Stats.Read(ctx, []string{"other", "s"})
	if err != nil || len(f) != 2 || f[0].SinkState != (store.SinkState{State: store.StateActive}) ||
		f[0].Scheduled+f[0].DeadLetters != 0 || f[1].State != store.StatePaused || f[1].Scheduled != 3 ||
		f[1].DeadLetters != 1 {
		t.Fatalf("%+v, %v", f, err)
	}
	for _, step := range []struct {
		dead  bool
		knows bool
	}{{false, true}, {true, false}} {
		if err := e.store.Forget(ctx, "s", step.dead); err != nil {
			t.Fatal(err)
		}
		if knows, err := e.store.Stats.HasData(ctx, "s"); err != nil || knows != step.knows {
			t.Errorf("forgotten with dead letters %v: remembers %v, %v", step.dead, knows, err)
		}
	}
	if keys := e.client.Keys(ctx, "*").Val(); len(keys) != 1 || keys[0] != "hubrelay:sinkchanges" {
		t.Errorf("left: %v", keys)
	}
}

func TestSendTest_StoresNothing(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	for _, c := range []struct {
		err    error
		want   string
		status int
	}{{nil, "delivered", 0}, {errFar, "retry", 500}, {relay.Gone(errFar), "gone", 500}} {
		p := e.pipeline(&fakeSink{answer: answers(c.err)}, nil)
		if a := p.SendTest(t.Context(), delivery("d1").Notifications[0]); a.Outcome != c.want || a.Status != c.status {
			t.Errorf("%+v, want %s", a, c.want)
		}
	}
	if keys := e.client.Keys(t.Context(), "*").Val(); len(keys) != 0 {
		t.Errorf("stored %v", keys)
	}
}

// A sink with digests gets a digest.
func TestSendTest_Digest(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	n := event(0, "container.error", "h1").Notifications[0]
	for _, c := range []struct {
		wait time.Duration
		by   []string
		want *relay.Digest
	}{
		{0, nil, nil},
		{time.Hour, nil, &relay.Digest{
			Count: 1, First: n.StoredAt(), Last: n.StoredAt(), Topics: map[string]int{n.Topic: 1},
		}},
		{time.Hour, []string{ByHub}, &relay.Digest{
			Count: 1, First: n.StoredAt(), Last: n.StoredAt(), Shared: map[string]string{"hub": "h1"},
			Topics: map[string]int{n.Topic: 1},
		}},
	} {
		sink := &fakeSink{answer: answers(nil)}
		p := e.pipeline(sink, gathering(c.wait, 20, c.by...))
		if a := p.SendTest(t.Context(), n); a.Outcome != "delivered" {
			t.Errorf("%+v", a)
		}
		got := sink.deliveries()
		if len(got) != 1 || !reflect.DeepEqual(got[0].Digest, c.want) || got[0].Attempt != 1 ||
			len(got[0].Notifications) != 1 ||
			(got[0].ID == n.ID) != (c.want == nil) ||
			len(got[0].ID) != 24 && c.want != nil {
			t.Errorf("%s %v: %+v", c.wait, c.by, got)
		}
	}
	if keys := e.client.Keys(t.Context(), "*").Val(); len(keys) != 0 {
		t.Errorf("stored %v", keys)
	}
}

// givenUpSink has background work that an operator can resume.
type givenUpSink struct {
	fakeSink
	resumed atomic.Int64
}

func (*givenUpSink) Start()        {}
func (*givenUpSink) Health() error { return nil }
func (g *givenUpSink) Resume()     { g.resumed.Add(1) }

// A resume starts the work of a sink on all nodes, also on those without deliveries.
func TestResume_StartsWorkOnAllNodes(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	sinks := []*givenUpSink{{}, {}}
	for _, sink := range sinks {
		e.retries(e.pipeline(sink, nil))
	}
	if _, err := e.store.States.Disable(t.Context(), "s", "gave up", "", time.Now()); err != nil {
		t.Fatal(err)
	}
	if err := e.resume(); err != nil {
		t.Fatal(err)
	}
	for i, sink := range sinks {
		testkit.WaitForValue(t, fmt.Sprintf("node %d to resume", i), 1, sink.resumed.Load)
	}
}
