package pipeline

import (
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/delivery/admission"
	"github.com/hubrelay/hubrelay/relay/internal/delivery/store"
)

// deadLetterCounter counts the dead letters that are reported.
type deadLetterCounter struct {
	noopObserver

	count atomic.Int64
}

func (c *deadLetterCounter) DeadLettered(string, string) { c.count.Add(1) }

// A fresh delivery is discarded if its account is erased while the delivery waits, or during its attempt.
func TestErased_FreshDeliveries(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		change   func(*Options)
		answer   error
		attempts int // before the erasure
	}{
		"waiting":                {},
		"waiting for a batch":    {change: func(o *Options) { o.Batch = Batch{Wait: time.Millisecond, Max: 2} }},
		"waiting for a digest":   {change: func(o *Options) { o.Digest = Digest{Wait: time.Hour} }},
		"waiting for its order":  {change: func(o *Options) { o.Ordering = store.OrderingHub }},
		"failed attempt":         {answer: errFar, attempts: 1},
		"rejected attempt":       {answer: relay.Permanent(errors.New("rejected")), attempts: 1},
		"failed ordered attempt": {change: func(o *Options) { o.Ordering = store.OrderingHub }, answer: errFar, attempts: 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e, sink, reported := newEnv(t), &fakeSink{answer: answers(tt.answer)}, &deadLetterCounter{}
			p := e.pipeline(sink, func(o *Options) {
				o.Observer = reported
				o.IsErased = func(*relay.Notification) bool { return sink.attempts("") == tt.attempts }
				if tt.change != nil {
					tt.change(o)
				}
			})
			feed(t, p, []relay.Delivery{delivery("a")})
			if sink.attempts("") != tt.attempts || e.scheduledCount() != 0 || e.digestedCount() != 0 || len(e.deadLetters()) != 0 ||
				reported.count.Load() != 0 {
				t.Errorf("%d attempts, %d scheduled, %d in digests, dead %v and %d reported, want %d attempts and nothing else",
					sink.attempts(""), e.scheduledCount(), e.digestedCount(), e.deadLetters(), reported.count.Load(), tt.attempts)
			}
		})
	}
}

// A scheduled delivery is discarded too. If the node learns about the erasure only when the batch is complete, the delivery is
// made. It is settled in both cases.
func TestErased_Claims(t *testing.T) {
	t.Parallel()
	for erasedAt, attempts := range map[int64]int{1: 0, 2: 1} {
		testErasedClaim(t, erasedAt, attempts)
	}
}

// testErasedClaim delivers a batch with a claim that is erased from a check on.
func testErasedClaim(t *testing.T, erasedAt int64, attempts int) {
	t.Helper()
	e, sink := newEnv(t), &fakeSink{answer: answers(nil)}
	var checks atomic.Int64
	p := e.pipeline(sink, func(o *Options) {
		o.Batch = Batch{Wait: time.Millisecond, Max: 10}
		o.IsErased = func(*relay.Notification) bool { return checks.Add(1) >= erasedAt }
	})
	body, err := store.NewRecord(delivery("a"), time.Time{}).Encode()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := e.store.Retries.Schedule(t.Context(), "s", store.Scheduled{ID: "a", Body: body}, 0, time.Now()); err != nil {
		t.Fatal(err)
	}
	e.retries(p)
	testkit.WaitForValue(t, "scheduled", 0, func() int64 { return e.scheduledCount() })
	if got := sink.attempts(""); got != attempts {
		t.Errorf("erased from check %d on: got %d attempts, want %d", erasedAt, got, attempts)
	}
}

// The deliveries of a recovered account become due in steps, except deliveries that were claimed since.
func TestPostponer_TakeRemembered(t *testing.T) {
	t.Parallel()
	p := newEnv(t).pipeline(failFor(), nil).postponer
	for i := range maxRemembered + 1 {
		p.rememberDelivery(fmt.Sprint(i), admission.NewAccount("a"), time.Hour)
	}
	for i := range maxRemembered - maxMadeDue - 1 {
		p.forgetDelivery(fmt.Sprint(i))
	}
	p.isMakingDue.Store(true)
	for i, want := range []int{maxMadeDue, 1, 0} {
		if got := len(p.takeRemembered()); got != want || p.isMakingDue.Load() != (i == 0) {
			t.Errorf("success %d: got %d deliveries, want %d, and %t that more follow", i, got, want, p.isMakingDue.Load())
		}
	}
}
