package subscriber_test

import (
	"context"
	"errors"
	"log/slog"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"

	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay/internal/queue/subscriber"
)

func TestUndecodableEntriesGoToTheHook(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for _, fields := range [][]string{{"data", "no id"}, {"id", "no data"}, {"id", "", "data", "x"}, {"garbage", "x"}} {
		r.redis.XAdd(t.Context(), &redis.XAddArgs{Stream: "q", Values: fields})
	}
	r.publish("q", 0, 1)
	var mu sync.Mutex
	var stored []map[string]any
	s := r.subscriber(func(c *subscriber.Config) {
		c.ClaimIdle = 50 * time.Millisecond
		failed := false
		c.OnMalformed = func(_ context.Context, stream, id string, fields map[string]any) error {
			mu.Lock()
			defer mu.Unlock()
			if !failed {
				failed = true
				return errors.New("the quarantine is away")
			}
			if stream != "q" || id == "" {
				t.Errorf("got stream %q, entry %q", stream, id)
			}
			stored = append(stored, fields)
			return nil
		}
	})
	drain(t, r.subscribe(s, "q"), 0, 1)
	r.expectEmpty("q")
	mu.Lock()
	defer mu.Unlock()
	if len(stored) != 4 {
		t.Errorf("stored %v", stored)
	}
}

func TestVanishedStreamIsMadeAnewAndReported(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	gaps := make(chan string, 10)
	s := r.subscriber(func(c *subscriber.Config) { c.OnGap = func(stream string) { gaps <- stream } })
	c := r.subscribe(s, "q")
	r.publish("q", 0, 10)
	drain(t, c, 0, 10)
	r.expectEmpty("q")
	if err := r.redis.FlushAll(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	// A stream made anew within the same millisecond would use the same ids again.
	flushed := time.Now().UnixMilli()
	testkit.Eventually(t, "the next millisecond", func() error {
		if time.Now().UnixMilli() <= flushed {
			return errors.New("the clock stands still")
		}
		return nil
	})
	r.publish("q", 10, 20) // no group: nobody asked for it yet
	drain(t, c, 10, 20)
	select {
	case stream := <-gaps:
		if stream != "q" {
			t.Errorf("a gap of %q", stream)
		}
	case <-time.After(patience):
		t.Error("no gap was reported")
	}
}

func TestKeyOfAnotherTypeHoldsNobodyUp(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.redis.Set(t.Context(), "bad", "x", 0)
	s := r.subscriber(nil)
	r.subscribe(s, "bad")
	c := r.subscribe(s, "q")
	r.publish("q", 0, 10)
	drain(t, c, 0, 10)
	r.redis.Del(t.Context(), "q")
	r.redis.Set(t.Context(), "q", "x", 0) // while it is being read
	good := r.subscribe(s, "good")
	r.publish("good", 0, 10)
	drain(t, good, 0, 10)
}

func TestKilledRedisLosesNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t, "--appendfsync", "always")
	s := r.subscriber(func(c *subscriber.Config) { c.MaxInFlight = func(string) int { return 8 } })
	c := r.subscribe(s, "q")
	r.publish("q", 0, 2000)
	missing := make(map[string]bool)
	for i := range 2300 {
		missing[strconv.Itoa(i)] = true
	}
	ack := func(m *message.Message) {
		delete(missing, m.UUID)
		m.Ack()
	}
	for i := range 3 {
		for range 200 {
			ack(next(t, c))
		}
		held := next(t, c)
		r.server.Restart()
		ack(held)
		r.publish("q", 2000+i*100, 2100+i*100)
	}
	for len(missing) > 0 {
		ack(next(t, c))
	}
	go func() {
		for m := range c { // what comes twice
			m.Ack()
		}
	}()
	r.expectEmpty("q")
}

// TestLanesWaitForAcksToBeStored takes Redis away: what is acked then comes again after a kill, so it must stay little.
func TestLanesWaitForAcksToBeStored(t *testing.T) {
	t.Parallel()
	r := newRig(t, "--appendfsync", "always")
	failed := newWatch("storing acks failed")
	s := r.subscriber(func(c *subscriber.Config) {
		c.MaxInFlight = func(string) int { return 4 }
		c.MaxUnflushedAcks = func(string) int { return 2 }
		c.Log = slog.New(failed)
	})
	c := r.subscribe(s, "q")
	r.publish("q", 0, 200)
	first := next(t, c)
	r.server.Kill()
	first.Ack()
	acked := 1
	for seen := false; !seen; {
		select {
		case m := <-c:
			m.Ack()
			acked++
		case <-failed.seen:
			seen = true
		}
	}
	// Four lanes had a message when the third ack was too much.
	if acked > 2+4 {
		t.Errorf("%d were acked while none could be stored", acked)
	}
	r.server.Restart()
	go func() {
		for m := range c {
			m.Ack()
		}
	}()
	r.expectEmpty("q")
}

// watch is a log that tells once that a line has come.
type watch struct {
	slog.Handler
	line string
	once sync.Once
	seen chan struct{}
}

func newWatch(line string) *watch {
	return &watch{Handler: slog.DiscardHandler, line: line, seen: make(chan struct{})}
}

func (w *watch) Enabled(context.Context, slog.Level) bool { return true }

func (w *watch) Handle(_ context.Context, r slog.Record) error {
	if r.Message == w.line {
		w.once.Do(func() { close(w.seen) })
	}
	return nil
}
