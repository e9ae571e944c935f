package pipeline

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay"
)

func perSec(n int) relay.Rate { return relay.Rate{Count: n, Per: time.Second} }

// handle passes n fresh deliveries to a pipeline, with its concurrency.
func handle(t *testing.T, p *Pipeline, prefix string, n int) *sync.WaitGroup {
	t.Helper()
	var wg sync.WaitGroup
	var next atomic.Int64
	for range p.opts.Concurrency {
		wg.Go(func() {
			for i := next.Add(1); i <= int64(n); i = next.Add(1) {
				if err := handleDelivery(t.Context(), p, delivery(fmt.Sprint(prefix, i))); err != nil {
					t.Error(err)
				}
			}
		})
	}
	return &wg
}

// Two sinks with one destination share its rate.
func TestRate_SharedByKey(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	var a, b keyed
	a.answer, b.answer = answers(nil), answers(nil)
	slow := func(name string) func(*Options) {
		return func(o *Options) { o.Name, o.Rate = name, relay.Rate{Count: 2, Per: time.Hour} }
	}
	first, second := e.pipeline(&a, slow("a")), e.pipeline(&b, slow("b"))
	if err := handleDelivery(t.Context(), first, delivery("d1")); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- handleDelivery(ctx, second, delivery("d2")) }()
	testkit.WaitFor(t, "the rate was requested", func() bool { return e.scripts() >= 2 })
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) || b.attempts("") != 0 {
		t.Errorf("Handle = %v after %d attempts", err, b.attempts(""))
	}
	if n := e.client.Exists(t.Context(), "hubrelay:rate:key", "hubrelay:rate:a", "hubrelay:rate:b").Val(); n != 1 {
		t.Errorf("%d states, want one", n)
	}
}

type keyed struct{ fakeSink }

func (*keyed) RateKey() string { return "key" }

// scripts returns the number of scripts that Redis has run.
func (e *env) scripts() int {
	text, err := e.client.Info(context.Background(), "commandstats").Result()
	if err != nil {
		e.t.Fatal(err)
	}
	total := 0
	for _, line := range strings.Split(text, "\n") {
		for _, name := range []string{"cmdstat_eval:", "cmdstat_evalsha:"} {
			if rest, ok := strings.CutPrefix(line, name+"calls="); ok {
				var n int
				_, _ = fmt.Sscanf(rest, "%d", &n)
				total += n
			}
		}
	}
	return total
}

// A low rate costs a few requests per attempt, however many deliveries wait, and neither class starves.
func TestRate_LowRateIsFairAndCheap(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.scheduleDue(1000)
	before := e.scripts()
	var attempts, asked atomic.Int64
	sink := &fakeSink{answer: func(context.Context, relay.Delivery) error {
		if attempts.Add(1) == 12 {
			asked.Store(int64(e.scripts() - before))
		}
		return nil
	}}
	p := e.pipeline(sink, func(o *Options) { o.Rate, o.Burst = perSec(5), 1 })
	e.retries(p)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for i := range 30 {
		wg.Go(func() { _ = handleDelivery(ctx, p, delivery(fmt.Sprint("f", i))) })
	}
	testkit.WaitFor(t, "12 attempts", func() bool { return asked.Load() > 0 })
	cancel()
	wg.Wait()
	sink.mu.Lock()
	fresh := 0
	for _, d := range sink.got[:12] {
		if strings.HasPrefix(d.ID, "f") {
			fresh++
		}
	}
	sink.mu.Unlock()
	if fresh < 4 || fresh > 8 {
		t.Errorf("%d of 12 attempts were fresh", fresh)
	}
	if asked.Load() > 80 {
		t.Errorf("%d scripts for 12 attempts", asked.Load())
	}
	if n := p.admission.Waiting(); n != 0 {
		t.Errorf("%d still waiting", n)
	}
}

// A delivery that waits for the rate delays neither a stop nor a change of the state.
func TestRate_WaitEnds(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		end  func(e *env, p *Pipeline, stop func())
		want error
	}{
		{"stop", func(_ *env, _ *Pipeline, stop func()) { stop() }, context.Canceled},
		{"pause", func(e *env, _ *Pipeline, _ func()) {
			if err := e.store.States.Pause(context.Background(), "s"); err != nil {
				e.t.Error(err)
			}
		}, ErrDisabled},
		{"disable", func(_ *env, p *Pipeline, _ func()) { p.state.disable(context.Background(), errFar) }, ErrDisabled},
	} {
		for _, limited := range []bool{true, false} {
			t.Run(fmt.Sprint(c.name, limited), func(t *testing.T) {
				e := newEnv(t)
				sink := &fakeSink{answer: answers(relay.RetryAfter(&relay.ResponseError{Status: 429}, time.Hour))}
				p := e.pipeline(sink, func(o *Options) {
					if limited {
						o.Rate = relay.Rate{Count: 1, Per: time.Hour}
					}
					o.Schedule = Schedule{Delays: []time.Duration{time.Hour}}
				})
				stop := e.retries(p)
				if err := handleDelivery(t.Context(), p, delivery("d1")); err != nil {
					t.Fatal(err)
				}
				done := make(chan error, 1)
				go func() { done <- handleDelivery(t.Context(), p, delivery("held")) }()
				c.end(e, p, stop)
				if err := <-done; !errors.Is(err, c.want) || sink.attempts("held") != 0 {
					t.Errorf("Handle = %v after %d attempts, want %v after none", err, sink.attempts("held"), c.want)
				}
			})
		}
	}
}

// Without Redis no attempt starts. If Redis rejects writes, one starts per interval.
func TestRate_RedisOutage(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	sink := &fakeSink{answer: answers(nil)}
	p := e.pipeline(sink, func(o *Options) { o.Rate = perSec(20) })
	e.server.Kill()
	wg := handle(t, p, "d", 3)
	testkit.WaitForValue(t, "all wait", 3, func() int {
		return p.admission.Waiting()
	})
	if n := sink.attempts(""); n != 0 {
		t.Errorf("%d attempts without Redis", n)
	}
	e.server.Restart()
	wg.Wait()
	if err := e.client.ConfigSet(t.Context(), "maxmemory", "1").Err(); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	handle(t, p, "full", 11).Wait()
	if took := time.Since(start); took < 10*50*time.Millisecond {
		t.Errorf("11 attempts within %s, want one in 50ms", took)
	}
}

// A test delivery does not wait for the rate and uses no token.
func TestSendTest_IgnoresRate(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	p := e.pipeline(&fakeSink{answer: answers(nil)}, func(o *Options) { o.Rate = relay.Rate{Count: 1, Per: time.Hour} })
	for range 3 {
		if a := p.SendTest(t.Context(), delivery("d").Notifications[0]); a.Outcome != "delivered" {
			t.Errorf("%+v", a)
		}
	}
	if n := e.client.Exists(t.Context(), "hubrelay:rate:s").Val(); n != 0 {
		t.Error("a test delivery used a token")
	}
}
