package pipeline

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/delivery/store"
	"github.com/hubrelay/hubrelay/relay/internal/replay"
)

// A sink that prefers digests to waiting sends alone what its rate allows, and the rest as one digest.
func TestDigest_WhenLimited(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	sink := &fakeSink{answer: answers(nil)}
	p := e.pipeline(sink, func(o *Options) {
		// With a rate per minute, the test may be slow.
		o.Rate, o.Burst, o.DigestOverRate = relay.Rate{Count: 1, Per: time.Minute}, 1, true
	})
	e.retries(p)
	var wg sync.WaitGroup
	for i := range 30 {
		wg.Go(func() {
			if err := handleDelivery(t.Context(), p, event(i, "a.b", "h1")); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if n := e.digestedCount(); n != 29 || sink.attempts("") != 1 {
		t.Fatalf("%d in digests, %d sent", n, sink.attempts(""))
	}
	// As if a minute had passed.
	e.client.Del(t.Context(), "hubrelay:rate:s")
	e.due()
	testkit.WaitFor(t, "all delivered", func() bool { return len(sink.deliveries()) == 2 && e.scheduledCount() == 0 })
	alone, rest := sink.deliveries()[0], sink.deliveries()[1]
	if alone.Digest != nil || rest.Digest == nil || rest.Digest.Count != 29 ||
		len(rest.Notifications) != DefaultDigestMax {
		t.Errorf("%+v, %+v", alone, rest.Digest)
	}
	if keys := e.left(); !slices.Equal(keys, []string{"hubrelay:rate:s"}) {
		t.Errorf("left in Redis: %v", keys)
	}
}

// After a burst, the rest follows as one message. Later notifications are sent alone again.
func TestDigest_WhenLimited_Burst(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	sink := &fakeSink{answer: answers(nil)}
	p := e.pipeline(sink, func(o *Options) { o.Rate, o.Burst, o.DigestOverRate = perSec(1), 1, true })
	e.retries(p)
	handle(t, p, "d", 30).Wait()
	total := func() (n int) {
		for _, d := range sink.deliveries() {
			if n++; d.Digest != nil {
				n += d.Digest.Count - 1
			}
		}
		return n
	}
	testkit.WaitForValue(t, "all delivered", 30, func() int { return total() })
	if n := len(sink.deliveries()); n > 4 {
		t.Errorf("%d messages for a burst of 30", n)
	}
	testkit.WaitForValue(t, "nothing waits", 0, func() int { return len(e.left()) })
	if err := handleDelivery(t.Context(), p, delivery("late")); err != nil || sink.attempts("late") != 1 {
		t.Errorf("%v after %d attempts", err, sink.attempts("late"))
	}
}

// A due delivery is attempted first. Notifications that arrive before that are added to a digest.
func TestDigest_WhenLimited_AfterDueDelivery(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.scheduleDue(1)
	sink := &fakeSink{answer: answers(nil)}
	p := e.pipeline(sink, func(o *Options) { o.Rate, o.DigestOverRate = perSec(100), true })
	if err := handleDelivery(t.Context(), p, event(0, "a.b", "h1")); err != nil {
		t.Fatal(err)
	}
	if n := e.digestedCount(); n != 1 || sink.attempts("") != 0 {
		t.Errorf("%d in digests, %d sent", n, sink.attempts(""))
	}
	e.retries(p)
	testkit.WaitFor(t, "both delivered", func() bool { return sink.attempts("") == 2 && len(e.left()) == 0 })
}

func TestDigest_PausedSink(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	sink := &fakeSink{answer: answers(nil)}
	p := e.pipeline(sink, gathering(time.Hour, 20))
	e.retries(p)
	if err := handleDelivery(t.Context(), p, event(0, "a.b", "h1")); err != nil {
		t.Fatal(err)
	}
	if err := e.store.States.Pause(t.Context(), "s"); err != nil {
		t.Fatal(err)
	}
	if err := p.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := handleDelivery(t.Context(), p, event(1, "a.b", "h1")); !errors.Is(err, ErrDisabled) {
		t.Errorf("Handle = %v", err)
	}
	e.due()
	scripts := e.scripts()
	testkit.WaitFor(t, "polled", func() bool { return e.scripts() > scripts })
	if n := e.digestedCount(); n != 1 || e.scheduledCount() != 0 {
		t.Errorf("%d in digests, %d scheduled", n, e.scheduledCount())
	}
	if _, err := e.store.States.Resume(t.Context(), "s"); err != nil {
		t.Fatal(err)
	}
	testkit.WaitForValue(t, "delivered", 1, func() int { return len(sink.deliveries()) })
}

// While the destination fails or has asked for a pause, an overdue digest stays open.
func TestDigest_StaysOpenWhileDestinationFails(t *testing.T) {
	t.Parallel()
	for name, hold := range map[string]func(t *testing.T, p *Pipeline){
		"rest": func(t *testing.T, p *Pipeline) {
			endAttempt(t, p, relay.RetryAfter(&relay.ResponseError{Status: 429}, time.Hour))
		},
		"down": func(t *testing.T, p *Pipeline) {
			failDestination(t, p)
		},
	} {
		for _, rate := range []relay.Rate{{}, perSec(100)} {
			t.Run(name+rate.String(), func(t *testing.T) {
				t.Parallel()
				e := newEnv(t)
				sink := &fakeSink{answer: answers(nil)}
				p := e.pipeline(
					sink,
					func(o *Options) { gathering(time.Hour, 20)(o); o.Rate, o.probeDelay = rate, time.Hour },
				)
				hold(t, p)
				e.retries(p)
				for i := range 3 {
					if err := handleDelivery(t.Context(), p, event(i, "a.b", "h1")); err != nil {
						t.Fatal(err)
					}
					e.due()
					scripts := e.scripts()
					testkit.WaitFor(t, "polled", func() bool { return e.scripts() > scripts })
				}
				if n := e.digestedCount(); n != 3 || e.scheduledCount() != 0 || sink.attempts("") != 0 {
					t.Errorf("%d in digests, %d scheduled, %d attempts", n, e.scheduledCount(), sink.attempts(""))
				}
			})
		}
	}
}

// A full Redis takes no digest. The notification is delivered alone, because only deliveries free memory.
func TestDigest_FullRedis(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	sink := &fakeSink{answer: answers(nil)}
	p := e.pipeline(sink, gathering(time.Hour, 20))
	if err := e.client.ConfigSet(t.Context(), "maxmemory", "1").Err(); err != nil {
		t.Fatal(err)
	}
	d := event(0, "a.b", "h1")
	if err := handleDelivery(t.Context(), p, d); err != nil || sink.attempts(d.ID) != 1 {
		t.Errorf("%v after %d attempts", err, sink.attempts(d.ID))
	}
}

// With a full Redis, a notification that waits for the rate stops waiting when the sink is paused.
func TestDigest_FullRedis_Paused(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	sink := &fakeSink{answer: answers(nil)}
	p := e.pipeline(
		sink,
		func(o *Options) { o.Rate, o.Burst, o.DigestOverRate = relay.Rate{Count: 1, Per: time.Hour}, 1, true },
	)
	if err := e.client.ConfigSet(t.Context(), "maxmemory", "1").Err(); err != nil {
		t.Fatal(err)
	}
	if err := handleDelivery(t.Context(), p, event(0, "a.b", "h1")); err != nil {
		t.Fatal(err)
	}
	second := make(chan error)
	go func() { second <- handleDelivery(t.Context(), p, event(1, "a.b", "h1")) }()
	testkit.WaitForValue(t, "the second waits", 1, func() int {
		return p.admission.Waiting()
	})
	p.state.set(store.StatePaused, "")
	select {
	case err := <-second:
		if !errors.Is(err, ErrDisabled) {
			t.Error(err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("it still waits")
	}
}

// Replayed notifications are added to digests too, but not deliveries with a history.
func TestDigest_Replay(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*Options){
		"digest": gathering(300*time.Millisecond, 20),
		"rate": func(o *Options) {
			o.Rate, o.Burst, o.DigestOverRate = relay.Rate{Count: 30, Per: time.Minute}, 1, true
		},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t)
			log := &fakeLog{reached: "300-0", covers: true, queued: map[string]bool{}}
			for i := 1; i <= 50; i++ {
				n := event(i, "a.b", "h1").Notifications[0]
				n.Cursor = fmt.Sprintf("%d-0", i)
				log.entries = append(log.entries, n)
			}
			request := replay.Request{Sink: "s", Partitions: 1, After: replay.StartAt("0-0")}
			if got, err := e.replay(t.Context(), log, request); err != nil ||
				got.Scheduled != 50 {
				t.Fatalf("%+v, %v", got, err)
			}
			sink := &fakeSink{answer: answers(nil)}
			e.retries(e.pipeline(sink, change))
			total := func() (n int) {
				for _, d := range sink.deliveries() {
					if n++; d.Digest != nil {
						n += d.Digest.Count - 1
					}
				}
				return n
			}
			testkit.WaitFor(t, "all delivered", func() bool { return total() == 50 && e.scheduledCount() == 0 })
			if n := len(sink.deliveries()); n > 5 {
				t.Errorf("%d messages for a replay of 50", n)
			}
		})
	}
}

func TestDigest_AddLostClaim(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.scheduleDue(1)
	n := event(0, "a.b", "h1").Notifications[0]
	n.ID = "p0"
	entry := store.DigestEntry{
		Notification: n,
		Group:        "k",
		MaxListed:    1,
		Wait:         time.Hour,
		ArrivedAt:    n.StoredAt(),
		LeaseEnd:     "1",
	}
	if added, err := e.store.Digests.Add(t.Context(), "s", entry); err != nil || !added.Done {
		t.Fatal(added, err)
	}
	if e.digestedCount() != 0 || e.scheduledCount() != 1 {
		t.Errorf("%d in digests, %d scheduled", e.digestedCount(), e.scheduledCount())
	}
}
