package pipeline

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/delivery/store"
)

func TestRate_TwoNodes(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		rate  relay.Rate
		burst int
		n     int
	}{{perSec(50), 5, 100}, {perSec(1000), 0, 2500}, {perSec(3), 1, 4}} {
		t.Run(fmt.Sprint(c.rate, " ", c.burst), func(t *testing.T) {
			e := newEnv(t)
			burst := cmp.Or(c.burst, c.rate.Count)
			var mu sync.Mutex
			var began []span
			// Each node has its own client.
			var nodes sync.WaitGroup
			for node := range 2 {
				rates := &store.New(&timed{UniversalClient: e.client, granted: func(n int, at span) {
					mu.Lock()
					defer mu.Unlock()
					for range n {
						began = append(began, at)
					}
				}}, testKeys()).Rates
				p := e.pipeline(&fakeSink{answer: answers(nil)}, func(o *Options) {
					o.Rate, o.Burst, o.rates = c.rate, c.burst, rates
				})
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

// span is the earliest and latest time of an event, in microseconds of Redis.
type span struct{ from, to int64 }

// timed records the grants of each script and its time.
type timed struct {
	redis.UniversalClient
	granted func(n int, at span)
}

func (t *timed) EvalSha(ctx context.Context, sha string, keys []string, args ...any) *redis.Cmd {
	return t.together(ctx, "EVALSHA", sha, keys, args)
}

func (t *timed) Eval(ctx context.Context, script string, keys []string, args ...any) *redis.Cmd {
	return t.together(ctx, "EVAL", script, keys, args)
}

func (t *timed) together(ctx context.Context, name, script string, keys []string, args []any) *redis.Cmd {
	words := []any{name, script, len(keys)}
	for _, k := range keys {
		words = append(words, k)
	}
	var cmd *redis.Cmd
	var before, after *redis.TimeCmd
	_, _ = t.TxPipelined(ctx, func(pipe redis.Pipeliner) error {
		before = pipe.Time(ctx)
		cmd = pipe.Do(ctx, append(words, args...)...)
		after = pipe.Time(ctx)
		return nil
	})
	if reply, err := cmd.Int64Slice(); err == nil && len(reply) == 3 && reply[0] > 0 {
		t.granted(int(reply[0]), span{before.Val().UnixMicro(), after.Val().UnixMicro()})
	}
	return cmd
}

func TestRates_Take(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	ctx := t.Context()
	p := store.RateLimit{Rate: relay.Rate{Count: 10, Per: time.Hour}, Burst: 3}
	begin := func(n, want int) time.Duration {
		t.Helper()
		g, err := e.store.Rates.Take(ctx, "r", p, n)
		if err != nil || g.Tokens != want || g.Cooldown {
			t.Fatalf("%+v, %v, want %d", g, err, want)
		}
		return g.RetryIn
	}
	begin(2, 2)
	if next := begin(2, 1); next <= 5*time.Minute || next > 6*time.Minute {
		t.Errorf("the next in %s", next)
	}
	begin(1, 0)
	// Returned tokens can be taken again.
	if err := e.store.Rates.Return(ctx, "r", p, 2); err != nil {
		t.Fatal(err)
	}
	begin(5, 2)
	if ttl := e.client.PTTL(ctx, "hubrelay:rate:r").Val(); ttl <= 17*time.Minute || ttl > 19*time.Minute {
		t.Errorf("kept for %s", ttl)
	}
	// During a cooldown there are no tokens. Neither returned tokens nor a shorter cooldown change that.
	for _, wait := range []time.Duration{2 * time.Hour, time.Minute} {
		if err := e.store.Rates.Cooldown(ctx, "r", p, wait); err != nil {
			t.Fatal(err)
		}
	}
	if err := e.store.Rates.Return(ctx, "r", p, 3); err != nil {
		t.Fatal(err)
	}
	if g, err := e.store.Rates.Take(ctx, "r", p, 3); err != nil || g.Tokens != 0 || !g.Cooldown ||
		g.RetryIn <= time.Hour {
		t.Errorf("%+v, %v", g, err)
	}
	// When all tokens were returned, the key is gone.
	if g, err := e.store.Rates.Take(ctx, "q", p, 3); err != nil || g.Tokens != 3 {
		t.Errorf("%+v, %v", g, err)
	}
	if err := e.store.Rates.Return(ctx, "q", p, 3); err != nil || e.client.Exists(ctx, "hubrelay:rate:q").Val() != 0 {
		t.Error("the state is still there", err)
	}
}

// An attempt with two requests delays the next one, even if it was the last of a burst.
func TestRate_ExtraRequests(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	sink := &spender{fakeSink: fakeSink{answer: answers(nil)}}
	p := e.pipeline(sink, func(o *Options) {
		o.Rate, o.Burst = relay.Rate{Count: 10, Per: time.Hour}, 3
		o.TakeExtraRequests = sink.takeExtraRequests
	})
	for _, id := range []string{"d1", "d2"} {
		if err := handleDelivery(t.Context(), p, delivery(id)); err != nil {
			t.Fatal(err)
		}
	}
	limit := store.RateLimit{Rate: relay.Rate{Count: 10, Per: time.Hour}, Burst: 3}
	// Two attempts and two extra requests are one more than the burst.
	g, err := e.store.Rates.Take(t.Context(), "s", limit, 1)
	if err != nil || g.Tokens != 0 || g.RetryIn <= 11*time.Minute || g.RetryIn > 12*time.Minute {
		t.Errorf("%+v, %v", g, err)
	}
	if err := e.store.Rates.Charge(t.Context(), "s", limit, 2); err != nil {
		t.Fatal(err)
	}
	if g, err = e.store.Rates.Take(t.Context(), "s", limit, 1); err != nil || g.Tokens != 0 ||
		g.RetryIn <= 23*time.Minute ||
		g.RetryIn > 24*time.Minute {
		t.Errorf("after two more %+v, %v", g, err)
	}
	// Extra requests before a cooldown do not extend it.
	if err := e.store.Rates.Cooldown(t.Context(), "r", limit, time.Minute); err != nil {
		t.Fatal(err)
	}
	if err := e.store.Rates.Charge(t.Context(), "r", limit, 5); err != nil {
		t.Fatal(err)
	}
	if g, err = e.store.Rates.Take(t.Context(), "r", limit, 1); err != nil || !g.Cooldown || g.RetryIn > time.Minute {
		t.Errorf("during a rest %+v, %v", g, err)
	}
}

// spender makes two requests per attempt.
type spender struct {
	fakeSink
	further atomic.Int64
}

func (s *spender) Deliver(ctx context.Context, d relay.Delivery) error {
	s.further.Add(1)
	return s.fakeSink.Deliver(ctx, d)
}

func (s *spender) takeExtraRequests() int { return int(s.further.Swap(0)) }

// A former lower rate, or a clock that was ahead, delays nothing.
func TestRates_RaisedRate(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	low, high := store.RateLimit{
		Rate:  relay.Rate{Count: 1, Per: time.Hour},
		Burst: 10,
	}, store.RateLimit{
		Rate:  perSec(1000),
		Burst: 1,
	}
	if g, err := e.store.Rates.Take(t.Context(), "r", low, 10); err != nil || g.Tokens != 10 {
		t.Fatalf("%+v, %v", g, err)
	}
	testkit.WaitForValue(t, "one begins", 1, func() int {
		g, err := e.store.Rates.Take(t.Context(), "r", high, 1)
		if err != nil || g.RetryIn > time.Second {
			t.Fatalf("%+v, %v", g, err)
		}
		return g.Tokens
	})
}

func TestRates_NoBurstAfterCooldown(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	p := store.RateLimit{Rate: relay.Rate{Count: 2, Per: time.Minute}, Burst: 10}
	if err := e.store.Rates.Cooldown(t.Context(), "r", p, time.Millisecond); err != nil {
		t.Fatal(err)
	}
	var g store.Grant
	testkit.WaitFor(t, "the first begins", func() bool {
		var err error
		if g, err = e.store.Rates.Take(t.Context(), "r", p, 10); err != nil {
			t.Fatal(err)
		}
		return g.Tokens > 0
	})
	if g.Tokens != 1 || g.RetryIn <= 0 {
		t.Errorf("%+v, want one", g)
	}
}

// Ending a cooldown early causes no burst. Ending one whose time has passed changes nothing.
func TestRates_EndCooldown(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	p := store.RateLimit{Rate: relay.Rate{Count: 2, Per: time.Minute}, Burst: 10}
	take := func(want int) {
		t.Helper()
		if g, err := e.store.Rates.Take(t.Context(), "r", p, 10); err != nil || g.Tokens != want || g.Cooldown {
			t.Errorf("got %+v, %v, want %d", g, err, want)
		}
	}
	end := func() {
		t.Helper()
		if err := e.store.Rates.EndCooldown(t.Context(), "r", p); err != nil {
			t.Fatal(err)
		}
	}
	if err := e.store.Rates.Cooldown(t.Context(), "r", p, time.Hour); err != nil {
		t.Fatal(err)
	}
	end()
	take(1)
	end()
	take(0)
	if err := e.client.HSet(t.Context(), store.RateKey(testKeys(), "r"), "rest", "1").Err(); err != nil { // long ago
		t.Fatal(err)
	}
	end()
	take(0)
}
