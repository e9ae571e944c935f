package deliver

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hubrelay/hubrelay/relay"
)

func perSec(n int) relay.Rate { return relay.Rate{Count: n, Per: time.Second} }

// handle gives fresh deliveries to a pipeline, as many at once as its concurrency, and returns when all are handled.
func handle(t *testing.T, p *Pipeline, prefix string, n int) *sync.WaitGroup {
	t.Helper()
	var wg sync.WaitGroup
	var next atomic.Int64
	for range p.o.Concurrency {
		wg.Go(func() {
			for i := next.Add(1); i <= int64(n); i = next.Add(1) {
				if err := p.Handle(t.Context(), delivery(fmt.Sprint(prefix, i))); err != nil {
					t.Error(err)
				}
			}
		})
	}
	return &wg
}

func TestRateOfTwoNodes(t *testing.T) {
	for _, c := range []struct {
		rate  relay.Rate
		burst int
		n     int
	}{{perSec(50), 5, 100}, {perSec(1000), 0, 2500}, {perSec(3), 1, 4}} {
		t.Run(fmt.Sprint(c.rate, " ", c.burst), func(t *testing.T) {
			e := newEnv(t)
			burst := newPace(c.rate, c.burst).burst
			var mu sync.Mutex
			var began []span
			// Two nodes have clients of their own.
			var nodes sync.WaitGroup
			for node := range 2 {
				p := e.pipeline(&fakeSink{answer: answers(nil)}, func(o *Options) {
					o.Rate, o.Burst = c.rate, c.burst
				})
				p.gate.store = NewStore(&timed{UniversalClient: e.client, granted: func(n int, at span) {
					mu.Lock()
					defer mu.Unlock()
					for range n {
						began = append(began, at)
					}
				}}, testKeys{})
				nodes.Go(func() { handle(t, p, fmt.Sprint("n", node, "-"), c.n/2).Wait() })
			}
			nodes.Wait()
			if len(began) < c.n {
				t.Fatalf("%d of %d granted", len(began), c.n)
			}
			slices.SortFunc(began, func(a, b span) int { return int(a.from - b.from) })
			for i := range began {
				for j := i; j < len(began); j++ {
					window := float64(began[j].to-began[i].from) / 1e6
					most := float64(burst) + float64(c.rate.Count)*window + 0.01
					if got := j - i + 1; float64(got) > most {
						t.Fatalf("%d began within %.4fs, want at most %.2f", got, window, most)
					}
				}
			}
		})
	}
}

// span is when something happened at the earliest and at the latest, in microseconds of Redis.
type span struct{ from, to int64 }

// timed tells how many attempts each script granted and when it ran.
type timed struct {
	redis.UniversalClient
	granted func(n int, at span)
}

func (c *timed) EvalSha(ctx context.Context, sha string, keys []string, args ...any) *redis.Cmd {
	return c.together(ctx, "EVALSHA", sha, keys, args)
}

func (c *timed) Eval(ctx context.Context, script string, keys []string, args ...any) *redis.Cmd {
	return c.together(ctx, "EVAL", script, keys, args)
}

func (c *timed) together(ctx context.Context, name, script string, keys []string, args []any) *redis.Cmd {
	words := []any{name, script, len(keys)}
	for _, k := range keys {
		words = append(words, k)
	}
	var cmd *redis.Cmd
	var before, after *redis.TimeCmd
	_, _ = c.TxPipelined(ctx, func(pipe redis.Pipeliner) error {
		before = pipe.Time(ctx)
		cmd = pipe.Do(ctx, append(words, args...)...)
		after = pipe.Time(ctx)
		return nil
	})
	if reply, err := cmd.Int64Slice(); err == nil && len(reply) == 3 && reply[0] > 0 {
		c.granted(int(reply[0]), span{before.Val().UnixMicro(), after.Val().UnixMicro()})
	}
	return cmd
}

func TestGrants(t *testing.T) {
	e := newEnv(t)
	ctx := t.Context()
	p := newPace(relay.Rate{Count: 10, Per: time.Hour}, 3)
	begin := func(n, want int) time.Duration {
		t.Helper()
		g, err := e.store.begin(ctx, "r", p, n)
		if err != nil || g.n != want || g.rest {
			t.Fatalf("%+v, %v, want %d", g, err, want)
		}
		return g.next
	}
	begin(2, 2)
	if next := begin(2, 1); next <= 5*time.Minute || next > 6*time.Minute {
		t.Errorf("the next in %s", next)
	}
	begin(1, 0)
	// What did not begin can begin later.
	if err := e.store.unbegin(ctx, "r", p, 2); err != nil {
		t.Fatal(err)
	}
	begin(5, 2)
	if ttl := e.client.PTTL(ctx, "hubrelay:rate:r").Val(); ttl <= 17*time.Minute || ttl > 19*time.Minute {
		t.Errorf("kept for %s", ttl)
	}
	// During a rest nothing begins, and giving back does not shorten it; a shorter one does neither.
	for _, wait := range []time.Duration{2 * time.Hour, time.Minute} {
		if err := e.store.rest(ctx, "r", p, wait); err != nil {
			t.Fatal(err)
		}
	}
	if err := e.store.unbegin(ctx, "r", p, 3); err != nil {
		t.Fatal(err)
	}
	if g, err := e.store.begin(ctx, "r", p, 3); err != nil || g.n != 0 || !g.rest || g.next <= time.Hour {
		t.Errorf("%+v, %v", g, err)
	}
	// All of it given back leaves nothing behind.
	if g, err := e.store.begin(ctx, "q", p, 3); err != nil || g.n != 3 {
		t.Errorf("%+v, %v", g, err)
	}
	if err := e.store.unbegin(ctx, "q", p, 3); err != nil || e.client.Exists(ctx, "hubrelay:rate:q").Val() != 0 {
		t.Error("the state is still there", err)
	}
}

func TestAfterARestThereIsNoBurst(t *testing.T) {
	e := newEnv(t)
	p := newPace(perSec(2), 10)
	if err := e.store.rest(t.Context(), "r", p, time.Millisecond); err != nil {
		t.Fatal(err)
	}
	var g grant
	eventually(t, "the first begins", func() bool {
		var err error
		if g, err = e.store.begin(t.Context(), "r", p, 10); err != nil {
			t.Fatal(err)
		}
		return g.n > 0
	})
	if g.n != 1 || g.next <= 0 {
		t.Errorf("%+v, want one", g)
	}
}

func TestBurstAndBatch(t *testing.T) {
	for _, c := range []struct {
		rate         relay.Rate
		burst        int
		wantBurst, b int
	}{
		{perSec(1), 0, 1, 1},
		{perSec(50), 0, 50, 5},
		{perSec(50), 2, 2, 2},
		{relay.Rate{Count: 90, Per: time.Minute}, 0, 1, 1},
		{relay.Rate{Count: 10, Per: time.Hour}, 0, 1, 1},
		{relay.Rate{}, 0, 1, 1},
	} {
		p := newPace(c.rate, c.burst)
		if p.burst != c.wantBurst || p.batch() != c.b {
			t.Errorf("%s, %d: burst %d, batch %d", c.rate, c.burst, p.burst, p.batch())
		}
	}
}

// A destination that answers 429 gets nothing of the sink until the time that it named.
func TestTooManyRequestsHoldTheWholeSink(t *testing.T) {
	for _, rate := range []relay.Rate{{}, perSec(1000)} {
		t.Run(rate.String(), func(t *testing.T) {
			e := newEnv(t)
			const rest = 400 * time.Millisecond
			var refused, first atomic.Int64
			sink := &fakeSink{answer: func(context.Context, relay.Delivery) error {
				now := time.Now().UnixNano()
				if refused.CompareAndSwap(0, now) {
					return relay.RetryAfter(&relay.AnswerError{Status: 429}, rest)
				}
				first.CompareAndSwap(0, now)
				return nil
			}}
			obs := &counting{}
			p := e.pipeline(sink, func(o *Options) { o.Rate, o.Observer = rate, obs })
			e.retries(p)
			if err := p.Handle(t.Context(), delivery("d0")); err != nil {
				t.Fatal(err)
			}
			if e.park(5); obs.get("held true") != 1 || sink.attempts("") != 1 {
				t.Errorf("observed %v after %d attempts", obs.n, sink.attempts(""))
			}
			handle(t, p, "f", 20).Wait()
			eventually(t, "all delivered", func() bool { return e.parkedCount() == 0 && sink.attempts("") == 1+1+5+20 })
			if wait := time.Duration(first.Load() - refused.Load()); wait < rest {
				t.Errorf("the next attempt came after %s, want %s at least", wait, rest)
			}
			eventually(t, "no longer held", func() bool { return obs.get("held false") == 2 })
		})
	}
}

// The other nodes learn of it by Redis, where the sink has a rate.
func TestTooManyRequestsHoldAllNodes(t *testing.T) {
	e := newEnv(t)
	limited := func(o *Options) { o.Rate = perSec(100) }
	one := e.pipeline(&fakeSink{answer: answers(relay.RetryAfter(&relay.AnswerError{Status: 503}, time.Minute))}, limited)
	if err := one.Handle(t.Context(), delivery("d1")); err != nil {
		t.Fatal(err)
	}
	sink, obs := &fakeSink{answer: answers(nil)}, &counting{}
	other := e.pipeline(sink, func(o *Options) { limited(o); o.Observer = obs })
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- other.Handle(ctx, delivery("d2")) }()
	eventually(t, "known", func() bool { return obs.get("held true") == 1 })
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) || sink.attempts("") != 0 {
		t.Errorf("Handle = %v after %d attempts", err, sink.attempts(""))
	}
}

func TestRestsGrowAndAreBounded(t *testing.T) {
	e := newEnv(t)
	now := time.Unix(1000, 0)
	p := e.pipeline(&fakeSink{answer: answers(nil)}, func(o *Options) { o.Now = func() time.Time { return now } })
	g := p.gate
	many := &relay.AnswerError{Status: 429}
	for _, step := range []struct {
		err  error
		want time.Duration
	}{
		{&relay.AnswerError{Status: 500}, 0},
		{relay.RetryAfter(&relay.AnswerError{Status: 500}, time.Hour), 0},
		{&relay.AnswerError{Status: 503}, 0},
		{errors.New("no route"), 0},
		{many, time.Second},
		{many, 2 * time.Second},
		{many, 4 * time.Second},
		{many, 8 * time.Second},
		{many, 16 * time.Second},
		{many, 32 * time.Second},
		{many, time.Minute},
		{relay.RetryAfter(many, 5*time.Second), 5 * time.Second},
		{many, time.Minute},
		{nil, 0},
		{many, time.Second},
		{relay.RetryAfter(many, 24*time.Hour), longestRest},
		{relay.Permanent(many), 0},
	} {
		g.heard(t.Context(), true, step.err)
		if got := g.rests(); got != step.want {
			t.Fatalf("after %v a rest of %s, want %s", step.err, got, step.want)
		}
		// What was under way says nothing new.
		if g.heard(t.Context(), true, many); step.want > 0 && g.rests() != step.want {
			t.Fatalf("a second 429 at once: %s, want %s", g.rests(), step.want)
		}
		g.heard(t.Context(), false, relay.RetryAfter(many, 2*time.Hour))
		if step.want == 0 {
			g.until.Store(0)
			g.refusals = 0
		}
		now = now.Add(step.want)
	}
}

// Two sinks that lead to one destination share its rate.
func TestSinksShareTheRateOfAKey(t *testing.T) {
	e := newEnv(t)
	var a, b keyed
	a.answer, b.answer = answers(nil), answers(nil)
	slow := func(name string) func(*Options) {
		return func(o *Options) { o.Name, o.Rate = name, relay.Rate{Count: 2, Per: time.Hour} }
	}
	first, second := e.pipeline(&a, slow("a")), e.pipeline(&b, slow("b"))
	if err := first.Handle(t.Context(), delivery("d1")); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- second.Handle(ctx, delivery("d2")) }()
	eventually(t, "it was asked for", func() bool { return e.scripts() >= 2 })
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

// scripts is how many scripts Redis has run.
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

// A slow rate costs a few questions for each attempt, however much waits, and neither fresh ones nor retries starve.
func TestSlowRateNeitherSpinsNorStarves(t *testing.T) {
	e := newEnv(t)
	e.park(1000)
	sink := &fakeSink{answer: answers(nil)}
	p := e.pipeline(sink, func(o *Options) { o.Rate, o.Burst = perSec(5), 1 })
	e.retries(p)
	before := e.scripts()
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for i := range 30 {
		wg.Go(func() { _ = p.Handle(ctx, delivery(fmt.Sprint("f", i))) })
	}
	eventually(t, "12 attempts", func() bool { return sink.attempts("") >= 12 })
	asked := e.scripts() - before
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
	if asked > 80 {
		t.Errorf("%d scripts for 12 attempts", asked)
	}
	p.gate.mu.Lock()
	defer p.gate.mu.Unlock()
	if len(p.gate.line) != 0 {
		t.Errorf("%d still in line", len(p.gate.line))
	}
}

// Whoever waits for the rate holds up neither the end nor a change of the sink's state.
func TestGateLetsGoAtTheEnd(t *testing.T) {
	for _, c := range []struct {
		name string
		end  func(e *env, p *Pipeline, stop func())
		want error
	}{
		{"stop", func(_ *env, _ *Pipeline, stop func()) { stop() }, context.Canceled},
		{"pause", func(e *env, _ *Pipeline, _ func()) {
			if err := e.store.Pause(context.Background(), "s"); err != nil {
				e.t.Error(err)
			}
		}, ErrDisabled},
		{"disable", func(_ *env, p *Pipeline, _ func()) { p.disable(context.Background(), errFar) }, ErrDisabled},
	} {
		for _, limited := range []bool{true, false} {
			t.Run(fmt.Sprint(c.name, limited), func(t *testing.T) {
				e := newEnv(t)
				sink := &fakeSink{answer: answers(relay.RetryAfter(&relay.AnswerError{Status: 429}, time.Hour))}
				p := e.pipeline(sink, func(o *Options) {
					if limited {
						o.Rate = relay.Rate{Count: 1, Per: time.Hour}
					}
					o.Schedule = Schedule{Waits: []time.Duration{time.Hour}}
				})
				stop := e.retries(p)
				if err := p.Handle(t.Context(), delivery("d1")); err != nil {
					t.Fatal(err)
				}
				done := make(chan error, 1)
				go func() { done <- p.Handle(t.Context(), delivery("held")) }()
				c.end(e, p, stop)
				if err := <-done; !errors.Is(err, c.want) || sink.attempts("held") != 0 {
					t.Errorf("Handle = %v after %d attempts, want %v after none", err, sink.attempts("held"), c.want)
				}
			})
		}
	}
}

// What a probe of the breaker does not use up can begin later, on any node.
func TestAttemptsThatDoNotBeginAreGivenBack(t *testing.T) {
	e := newEnv(t)
	p := e.pipeline(&fakeSink{answer: answers(nil)}, func(o *Options) {
		o.Rate, o.Burst = relay.Rate{Count: 10, Per: time.Hour}, 5
	})
	ctx, cancel := context.WithCancel(t.Context())
	for range p.o.Concurrency {
		if err := p.slots.acquire(ctx); err != nil {
			t.Fatal(err)
		}
	}
	var wg sync.WaitGroup
	for i := range 5 {
		wg.Go(func() { _ = p.Handle(ctx, delivery(fmt.Sprint("d", i))) })
	}
	eventually(t, "all wait for a slot", func() bool {
		p.slots.mu.Lock()
		defer p.slots.mu.Unlock()
		return len(p.slots.line) == 5
	})
	cancel()
	wg.Wait()
	eventually(t, "all given back", func() bool { return e.client.Exists(t.Context(), "hubrelay:rate:s").Val() == 0 })
	p.slots.release(p.o.Concurrency)
}

// While Redis is away nobody passes; one that refuses to count lets one pass in each interval.
func TestGateWithoutRedis(t *testing.T) {
	e := newEnv(t)
	sink := &fakeSink{answer: answers(nil)}
	p := e.pipeline(sink, func(o *Options) { o.Rate = perSec(20) })
	e.server.Kill()
	wg := handle(t, p, "d", 3)
	eventually(t, "all wait", func() bool {
		p.gate.mu.Lock()
		defer p.gate.mu.Unlock()
		return len(p.gate.line) == 3
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

// A trial is not held back and uses nothing up.
func TestTryPassesTheGate(t *testing.T) {
	e := newEnv(t)
	p := e.pipeline(&fakeSink{answer: answers(nil)}, func(o *Options) { o.Rate = relay.Rate{Count: 1, Per: time.Hour} })
	for range 3 {
		if a := p.Try(t.Context(), delivery("d").Notifications[0]); a.Outcome != "delivered" {
			t.Errorf("%+v", a)
		}
	}
	if n := e.client.Exists(t.Context(), "hubrelay:rate:s").Val(); n != 0 {
		t.Error("a trial counts")
	}
}
