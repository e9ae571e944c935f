package pipeline

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/delivery/store"
)

func TestPipeline_Handle(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	for _, c := range []struct {
		name      string
		answer    func(context.Context, relay.Delivery) error
		waits     []time.Duration
		err       error
		scheduled int64
		dead      string
	}{
		{"delivered", answers(nil), []time.Duration{time.Hour}, nil, 0, ""},
		{"retry", answers(errFar), []time.Duration{time.Hour}, nil, 1, ""},
		{"no retry configured", answers(errFar), nil, nil, 0, "exhausted: status 500"},
		{"permanent", answers(relay.Permanent(errFar)), []time.Duration{time.Hour}, nil, 0, "permanent: status 500"},
		{
			"panic", func(context.Context, relay.Delivery) error { panic("s3cret") },
			[]time.Duration{time.Hour},
			nil, 1, "",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			e.client.FlushAll(t.Context())
			sink := &fakeSink{answer: c.answer}
			p := e.pipeline(sink, func(o *Options) { o.Schedule.Delays = c.waits })
			stored, err := p.Handle(t.Context(), delivery("d1"))
			if !errors.Is(err, c.err) {
				t.Errorf("Handle = %v, want %v", err, c.err)
			}
			if want := c.scheduled > 0 || c.dead != ""; stored != want {
				t.Errorf("Handle reports stored %t, want %t", stored, want)
			}
			if n := e.scheduledCount(); n != c.scheduled {
				t.Errorf("%d scheduled, want %d", n, c.scheduled)
			}
			letters := e.deadLetters()
			if c.dead == "" {
				if len(letters) != 0 {
					t.Errorf("dead letters %v", letters)
				}
				return
			}
			if len(letters) != 1 {
				t.Fatalf("dead letters %v", letters)
			}
			l := letters[0]
			got := fmt.Sprint(l["id"], l["topic"], l["hub"], l["account"], l["data"], l["reason"])
			want := fmt.Sprint(
				"d1",
				"container.error",
				"h1",
				"a1",
				string(delivery("d1").Notifications[0].Data),
				c.dead,
			)
			if got != want {
				t.Errorf("dead letter %s, want %s", got, want)
			}
			if a := attemptsOf(t, l); len(a) != 1 || a[0].Status != 500 || a[0].Response != errFar.Body {
				t.Errorf("attempts %+v", a)
			}
			if _, err := time.Parse(time.RFC3339Nano, fmt.Sprint(l["time"])); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestPipeline_RetriesUntilDelivered(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	sink := &fakeSink{answer: answers(errFar, relay.RetryAfter(errFar, 50*time.Millisecond), nil)}
	p := e.pipeline(sink, nil)
	e.retries(p)
	if err := handleDelivery(t.Context(), p, delivery("d1")); err != nil {
		t.Fatal(err)
	}
	testkit.WaitFor(t, "delivered and settled", func() bool {
		return sink.attempts("d1") == 3 && e.scheduledCount() == 0
	})
	sink.mu.Lock()
	defer sink.mu.Unlock()
	for i, d := range sink.got {
		if d.Attempt != i+1 || string(d.Notifications[0].Data) != string(delivery("d1").Notifications[0].Data) {
			t.Errorf("attempt %d: %+v", i+1, d)
		}
	}
	if letters := e.deadLetters(); len(letters) != 0 {
		t.Errorf("dead letters %v", letters)
	}
}

func TestPipeline_ExhaustedBecomesDeadLetter(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	sink := &fakeSink{answer: answers(errFar, errors.New("no route"), errFar, errFar)}
	p := e.pipeline(sink, nil)
	e.retries(p)
	if err := handleDelivery(t.Context(), p, delivery("d1")); err != nil {
		t.Fatal(err)
	}
	testkit.WaitForValue(t, "a dead letter", 1, func() int { return len(e.deadLetters()) })
	l := e.deadLetters()[0]
	a := attemptsOf(t, l)
	if len(a) != 4 || a[0].Status != 500 || a[1].Status != 0 || a[1].Error != "no route" ||
		!strings.HasPrefix(fmt.Sprint(l["reason"]), "exhausted") {
		t.Errorf("dead letter %v", l)
	}
	if n := e.scheduledCount(); n != 0 {
		t.Errorf("%d scheduled", n)
	}
}

// After a kill before the ack, the queue delivers a scheduled delivery again: it is attempted again and scheduled once.
func TestPipeline_KillBeforeAck(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	sink := &fakeSink{answer: answers(errFar, errFar, nil)}
	p := e.pipeline(sink, nil)
	for range 2 {
		if err := handleDelivery(t.Context(), p, delivery("d1")); err != nil {
			t.Fatal(err)
		}
	}
	if n := e.scheduledCount(); n != 1 {
		t.Fatalf("%d scheduled, want 1", n)
	}
	next := e.pipeline(sink, nil)
	e.retries(next)
	testkit.WaitFor(t, "delivered", func() bool { return sink.attempts("d1") == 3 && e.scheduledCount() == 0 })
}

func TestPipeline_GoneDisablesSink(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	sink := &fakeSink{answer: answers(relay.Gone(errFar))}
	var reported []string
	p := e.pipeline(sink, func(o *Options) {
		o.Fingerprint, o.OnDisabled = "v1", func(reason string) { reported = append(reported, reason) }
	})
	stop := e.retries(p)
	off, err := p.WaitEnabled(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := handleDelivery(t.Context(), p, delivery("d1")); !errors.Is(err, ErrDisabled) {
		t.Errorf("Handle = %v, want ErrDisabled", err)
	}
	<-off
	if err := handleDelivery(t.Context(), p, delivery("d2")); !errors.Is(err, ErrDisabled) || sink.attempts("d2") != 0 {
		t.Errorf("Handle = %v after %d attempts, want none", err, sink.attempts("d2"))
	}
	if n := e.scheduledCount() + int64(len(e.deadLetters())); n != 0 {
		t.Errorf("%d scheduled or dead", n)
	}
	stop()
	if len(reported) != 1 || !strings.Contains(reported[0], errFar.Error()) {
		t.Errorf("reported %q, want the error once", reported)
	}
	fields, err := e.client.HGetAll(t.Context(), "hubrelay:sink:s").Result()
	if err != nil || fields["state"] != "disabled" || fields["reason"] == "" || fields["since"] == "" {
		t.Errorf("state %v, %v", fields, err)
	}

	// After a restart it stays disabled until the key is deleted.
	again := e.pipeline(&fakeSink{answer: answers(nil)}, func(o *Options) { o.Fingerprint = "v1" })
	short, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := again.WaitEnabled(short); err == nil {
		t.Fatal("enabled after a restart")
	}
	r := e.newNode(0, again)
	ctx, end := context.WithCancel(t.Context())
	defer end()
	done := make(chan struct{})
	go func() { defer close(done); r.run(ctx) }()
	e.client.Del(t.Context(), "hubrelay:sink:s")
	if _, err := again.WaitEnabled(t.Context()); err != nil {
		t.Fatal(err)
	}
	end()
	<-done
}

func TestPipeline_OtherConfigurationEnables(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	old := e.pipeline(&fakeSink{answer: answers(relay.Gone(errFar))}, func(o *Options) { o.Fingerprint = "v1" })
	_ = handleDelivery(t.Context(), old, delivery("d1"))
	p := e.pipeline(&fakeSink{answer: answers(nil)}, func(o *Options) { o.Fingerprint = "v2" })
	if _, err := p.WaitEnabled(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n, _ := e.client.Exists(t.Context(), "hubrelay:sink:s").Result(); n != 0 {
		t.Error("the state is still there")
	}
}

// A scheduled delivery stays scheduled if the destination is gone.
func TestPipeline_GoneWhileRetrying(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	sink := &fakeSink{answer: answers(errFar, relay.Gone(errFar))}
	p := e.pipeline(sink, nil)
	e.retries(p)
	if err := handleDelivery(t.Context(), p, delivery("d1")); err != nil {
		t.Fatal(err)
	}
	testkit.WaitFor(t, "disabled", func() bool { off, _ := p.state.Off(); return off })
	if n := e.scheduledCount(); n != 1 || sink.attempts("d1") != 2 {
		t.Errorf("%d scheduled after %d attempts, want 1 after 2", n, sink.attempts("d1"))
	}
}

func TestPipeline_HangingSink(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	release := make(chan struct{})
	sink := &fakeSink{answer: func(_ context.Context, d relay.Delivery) error {
		if strings.HasPrefix(d.ID, "hang") {
			<-release
		}
		return nil
	}}
	p := e.pipeline(sink, func(o *Options) { o.Timeout, o.Concurrency = 20*time.Millisecond, 2 })
	var wg sync.WaitGroup
	for _, id := range []string{"hang1", "hang2"} {
		wg.Go(func() {
			if err := handleDelivery(t.Context(), p, delivery(id)); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if n := e.scheduledCount(); n != 2 {
		t.Errorf("%d scheduled, want 2", n)
	}
	// As many attempts as the concurrency were abandoned. No other one starts, and nothing blocks.
	if err := handleDelivery(t.Context(), p, delivery("d3")); err != nil || sink.attempts("d3") != 0 {
		t.Errorf("Handle = %v after %d attempts", err, sink.attempts("d3"))
	}
	short, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := p.Close(short); err == nil {
		t.Error("closed while attempts run")
	}
	close(release)
	testkit.WaitForValue(t, "all returned", 0, func() int64 { return p.runner.Running() })
	testkit.WaitFor(
		t,
		"an attempt is made again",
		func() bool {
			_, err := p.runner.Run(t.Context(), delivery("d4"))
			return err == nil
		},
	)
}

func TestPipeline_ShutdownIsNoFailure(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	ctx, cancel := context.WithCancel(t.Context())
	sink := &fakeSink{
		answer: func(ctx context.Context, _ relay.Delivery) error { cancel(); <-ctx.Done(); return ctx.Err() },
	}
	p := e.pipeline(sink, nil)
	if err := handleDelivery(ctx, p, delivery("d1")); !errors.Is(err, context.Canceled) {
		t.Errorf("Handle = %v", err)
	}
	if n := e.scheduledCount(); n != 0 {
		t.Errorf("%d scheduled", n)
	}
}

// While Redis is unreachable, a failed delivery is neither lost nor sent repeatedly.
func TestPipeline_RedisOutageWhileScheduling(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	sink := &fakeSink{answer: answers(errFar)}
	p := e.pipeline(sink, func(o *Options) { o.Schedule.Delays = []time.Duration{time.Hour} })
	e.server.Kill()
	done := make(chan error, 1)
	go func() { done <- handleDelivery(t.Context(), p, delivery("d1")) }()
	testkit.WaitForValue(t, "attempted", 1, func() int { return sink.attempts("d1") })
	e.server.Restart()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if n := e.scheduledCount(); n != 1 || sink.attempts("d1") != 1 {
		t.Errorf("%d scheduled after %d attempts", n, sink.attempts("d1"))
	}
	e.server.Kill()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := handleDelivery(ctx, p, delivery("d2")); err == nil {
		t.Error("Handle() = nil for a delivery that was not scheduled")
	}
}

func TestPipeline_NewAndClose(t *testing.T) {
	t.Parallel()
	if _, err := New(Options{}); err == nil {
		t.Error("New() without options succeeded")
	}
	sink := &fakeSink{answer: answers(nil)}
	p, err := New(Options{Name: "s", Sink: sink, Store: store.New(nil, testKeys())})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := p.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if sink.closed != 1 {
		t.Errorf("closed %d times", sink.closed)
	}
}

// lastMoment is a context that ends when Done is called.
type lastMoment struct {
	context.Context
	until func() // called before that
}

func (l lastMoment) Done() <-chan struct{} {
	l.until()
	ended := make(chan struct{})
	close(ended)
	return ended
}

// An attempt that returns when the context of Close ends does not keep the sink open.
func TestPipeline_CloseAtDeadline(t *testing.T) {
	t.Parallel()
	leave := make(chan struct{})
	sink := &fakeSink{answer: func(context.Context, relay.Delivery) error { <-leave; return nil }}
	p, err := New(Options{Name: "s", Sink: sink, Store: store.New(nil, testKeys())})
	if err != nil {
		t.Fatal(err)
	}
	made := make(chan error)
	go func() {
		_, err := p.runner.Run(t.Context(), delivery("d1"))
		made <- err
	}()
	testkit.WaitForValue(t, "an attempt", 1, func() int { return sink.attempts("d1") })
	err = p.Close(lastMoment{t.Context(), func() {
		close(leave)
		if err := <-made; err != nil {
			t.Error(err)
		}
	}})
	if err != nil || sink.closed != 1 {
		t.Errorf("%v, closed %d times", err, sink.closed)
	}
}
