package delivery

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

// A sink that rather gathers than waits sends what its rate allows alone, and the rest as one.
func TestGathersWhatTheRateMakesWait(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	sink := &fakeSink{answer: answers(nil)}
	p := e.pipeline(sink, func(o *Options) {
		// A minute's rate lets the test take its time.
		o.Rate, o.Burst, o.DigestWhenLimited = relay.Rate{Count: 1, Per: time.Minute}, 1, true
	})
	e.retries(p)
	var wg sync.WaitGroup
	for i := range 30 {
		wg.Go(func() {
			if err := p.Handle(t.Context(), event(i, "a.b", "h1")); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if n := e.gatheredCount(); n != 29 || sink.attempts("") != 1 {
		t.Fatalf("%d gathered, %d sent", n, sink.attempts(""))
	}
	// As if the minute were over.
	e.client.Del(t.Context(), "hubrelay:rate:s")
	e.due()
	testkit.WaitFor(t, "all delivered", func() bool { return len(sink.deliveries()) == 2 && e.parkedCount() == 0 })
	alone, rest := sink.deliveries()[0], sink.deliveries()[1]
	if alone.Digest != nil || rest.Digest == nil || rest.Digest.Count != 29 || len(rest.Notifications) != DefaultDigestMax {
		t.Errorf("%+v, %+v", alone, rest.Digest)
	}
	if keys := e.left(); !slices.Equal(keys, []string{"hubrelay:rate:s"}) {
		t.Errorf("left in Redis: %v", keys)
	}
}

// By the clock: what a burst leaves over follows as one message, and what comes later goes alone again.
func TestGathersAtItsRate(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	sink := &fakeSink{answer: answers(nil)}
	p := e.pipeline(sink, func(o *Options) { o.Rate, o.Burst, o.DigestWhenLimited = perSec(1), 1, true })
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
	testkit.WaitFor(t, "all delivered", func() bool { return total() == 30 })
	if n := len(sink.deliveries()); n > 4 {
		t.Errorf("%d messages for a burst of 30", n)
	}
	testkit.WaitFor(t, "nothing waits", func() bool { return len(e.left()) == 0 })
	if err := p.Handle(t.Context(), delivery("late")); err != nil || sink.attempts("late") != 1 {
		t.Errorf("%v after %d attempts", err, sink.attempts("late"))
	}
}

// What is parked and due goes first, and what comes meanwhile is gathered behind it.
func TestGathersBehindWhatIsDue(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.park(1)
	sink := &fakeSink{answer: answers(nil)}
	p := e.pipeline(sink, func(o *Options) { o.Rate, o.DigestWhenLimited = perSec(100), true })
	if err := p.Handle(t.Context(), event(0, "a.b", "h1")); err != nil {
		t.Fatal(err)
	}
	if n := e.gatheredCount(); n != 1 || sink.attempts("") != 0 {
		t.Errorf("%d gathered, %d sent", n, sink.attempts(""))
	}
	e.retries(p)
	testkit.WaitFor(t, "both delivered", func() bool { return sink.attempts("") == 2 && len(e.left()) == 0 })
}

func TestPausedSinkNeitherGathersNorSeals(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	sink := &fakeSink{answer: answers(nil)}
	p := e.pipeline(sink, gathering(time.Hour, 20))
	e.retries(p)
	if err := p.Handle(t.Context(), event(0, "a.b", "h1")); err != nil {
		t.Fatal(err)
	}
	if err := e.store.States.Pause(t.Context(), "s"); err != nil {
		t.Fatal(err)
	}
	if err := p.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := p.Handle(t.Context(), event(1, "a.b", "h1")); !errors.Is(err, ErrDisabled) {
		t.Errorf("Handle = %v", err)
	}
	e.due()
	scripts := e.scripts()
	testkit.WaitFor(t, "looked at", func() bool { return e.scripts() > scripts })
	if n := e.gatheredCount(); n != 1 || e.parkedCount() != 0 {
		t.Errorf("%d gathered, %d parked", n, e.parkedCount())
	}
	if _, err := e.store.States.Resume(t.Context(), "s"); err != nil {
		t.Fatal(err)
	}
	testkit.WaitFor(t, "delivered", func() bool { return len(sink.deliveries()) == 1 })
}

// While the destination rests or is down a digest goes on gathering, however late it is.
func TestHeldSinkGoesOnGathering(t *testing.T) {
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
				p := e.pipeline(sink, func(o *Options) { gathering(time.Hour, 20)(o); o.Rate, o.probeDelay = rate, time.Hour })
				hold(t, p)
				e.retries(p)
				for i := range 3 {
					if err := p.Handle(t.Context(), event(i, "a.b", "h1")); err != nil {
						t.Fatal(err)
					}
					e.due()
					scripts := e.scripts()
					testkit.WaitFor(t, "looked at", func() bool { return e.scripts() > scripts })
				}
				if n := e.gatheredCount(); n != 3 || e.parkedCount() != 0 || sink.attempts("") != 0 {
					t.Errorf("%d gathered, %d parked, %d attempts", n, e.parkedCount(), sink.attempts(""))
				}
			})
		}
	}
}

// What Redis has no room for goes alone, since only deliveries make room.
func TestFullRedisGathersNothing(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	sink := &fakeSink{answer: answers(nil)}
	p := e.pipeline(sink, gathering(time.Hour, 20))
	if err := e.client.ConfigSet(t.Context(), "maxmemory", "1").Err(); err != nil {
		t.Fatal(err)
	}
	d := event(0, "a.b", "h1")
	if err := p.Handle(t.Context(), d); err != nil || sink.attempts(d.ID) != 1 {
		t.Errorf("%v after %d attempts", err, sink.attempts(d.ID))
	}
}

// Where Redis is full too, what waits for the rate waits no longer than the sink takes deliveries.
func TestPausedSinkOfAFullRedis(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	sink := &fakeSink{answer: answers(nil)}
	p := e.pipeline(sink, func(o *Options) { o.Rate, o.Burst, o.DigestWhenLimited = relay.Rate{Count: 1, Per: time.Hour}, 1, true })
	if err := e.client.ConfigSet(t.Context(), "maxmemory", "1").Err(); err != nil {
		t.Fatal(err)
	}
	if err := p.Handle(t.Context(), event(0, "a.b", "h1")); err != nil {
		t.Fatal(err)
	}
	second := make(chan error)
	go func() { second <- p.Handle(t.Context(), event(1, "a.b", "h1")) }()
	testkit.WaitFor(t, "the second waits", func() bool {
		return p.admission.Waiting() == 1
	})
	p.state.set(store.StatePaused, "")
	select {
	case err := <-second:
		if !errors.Is(err, ErrDisabled) {
			t.Error(err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("it waits on")
	}
}

// What a replay of the log parks is gathered too, whatever the rate; what has a history goes alone.
func TestReplaysAreGathered(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*Options){
		"digest": gathering(300*time.Millisecond, 20),
		"rate": func(o *Options) {
			o.Rate, o.Burst, o.DigestWhenLimited = relay.Rate{Count: 30, Per: time.Minute}, 1, true
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
			if got, err := e.replay(t.Context(), log, replay.Request{Sink: "s", Partitions: 1, After: "0-0"}); err != nil || got.Scheduled != 50 {
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
			testkit.WaitFor(t, "all delivered", func() bool { return total() == 50 && e.parkedCount() == 0 })
			if n := len(sink.deliveries()); n > 5 {
				t.Errorf("%d messages for a replay of 50", n)
			}
		})
	}
}

func TestGatheringALostClaimChangesNothing(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.park(1)
	n := event(0, "a.b", "h1").Notifications[0]
	n.ID = "p0"
	entry := store.DigestEntry{Notification: n, Group: "k", MaxListed: 1, Wait: time.Hour, ArrivedAt: n.StoredAt(), LeaseEnd: "1"}
	if added, err := e.store.Digests.Add(t.Context(), "s", entry); err != nil || !added.Done {
		t.Fatal(added, err)
	}
	if e.gatheredCount() != 0 || e.parkedCount() != 1 {
		t.Errorf("%d gathered, %d parked", e.gatheredCount(), e.parkedCount())
	}
}
