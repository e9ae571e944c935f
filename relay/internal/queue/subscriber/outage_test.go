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

func TestSubscriber_PassesMalformedEntriesToHook(t *testing.T) {
	t.Parallel()
	r := newTestRedis(t)
	for _, fields := range [][]string{{"data", "no id"}, {"id", "no data"}, {"id", "", "data", "x"}, {"garbage", "x"}} {
		r.redis.XAdd(t.Context(), &redis.XAddArgs{Stream: "q", Values: fields})
	}
	r.publish("q", 0, 1)
	var mu sync.Mutex
	stored := map[string]map[string]any{} // by ID, because an entry whose removal is late is reported again
	s := r.subscriber(func(c *subscriber.Config) {
		c.ClaimIdle = 50 * time.Millisecond
		failed := false
		c.OnMalformed = func(_ context.Context, stream, id string, fields map[string]any) error {
			mu.Lock()
			defer mu.Unlock()
			if !failed {
				failed = true
				return errors.New("the quarantine is not available")
			}
			if stream != "q" || id == "" {
				t.Errorf("OnMalformed: got stream %q, entry %q", stream, id)
			}
			stored[id] = fields
			return nil
		}
	})
	ackAll(t, r.subscribe(s, "q"), 0, 1)
	r.expectEmpty("q")
	mu.Lock()
	defer mu.Unlock()
	if len(stored) != 4 {
		t.Errorf("got malformed entries %v, want 4", stored)
	}
}

func TestSubscriber_ReportsGapAfterFlush(t *testing.T) {
	t.Parallel()
	r := newTestRedis(t)
	gaps := make(chan string, 10)
	s := r.subscriber(func(c *subscriber.Config) { c.OnGap = func(stream string) { gaps <- stream } })
	c := r.subscribe(s, "q")
	r.publish("q", 0, 10)
	ackAll(t, c, 0, 10)
	r.expectEmpty("q")
	if err := r.redis.FlushAll(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	// A stream that is created in the same millisecond would use the same IDs again.
	flushed := time.Now().UnixMilli()
	testkit.Eventually(t, "the next millisecond", func() error {
		if time.Now().UnixMilli() <= flushed {
			return errors.New("the millisecond has not ended")
		}
		return nil
	})
	r.publish("q", 10, 20) // the group does not exist yet
	ackAll(t, c, 10, 20)
	select {
	case stream := <-gaps:
		if stream != "q" {
			t.Errorf("got a gap of %q, want q", stream)
		}
	case <-time.After(patience):
		t.Error("got no gap")
	}
}

// A subscriber that starts in a full Redis delivers what is queued, which frees memory. A group that is missing is created
// later and does not stop others.
func TestSubscribe_FullRedis(t *testing.T) {
	t.Parallel()
	r := newTestRedis(t)
	r.publish("old", 0, 3)
	first := r.subscriber(nil)
	next(t, r.subscribe(first, "old")).Ack()
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	limit := func(maxMemory string) {
		if err := r.redis.ConfigSet(t.Context(), "maxmemory", maxMemory).Err(); err != nil {
			t.Fatal(err)
		}
	}
	limit("1")
	s := r.subscriber(nil)
	fresh := r.subscribe(s, "new")
	ackAll(t, r.subscribe(s, "old"), 1, 3)
	r.expectEmpty("old")
	limit("0")
	r.publish("new", 0, 1)
	next(t, fresh).Ack()
}

func TestSubscriber_IgnoresKeyOfAnotherType(t *testing.T) {
	t.Parallel()
	r := newTestRedis(t)
	r.redis.Set(t.Context(), "bad", "x", 0)
	s := r.subscriber(nil)
	r.subscribe(s, "bad")
	c := r.subscribe(s, "q")
	r.publish("q", 0, 10)
	ackAll(t, c, 0, 10)
	r.redis.Del(t.Context(), "q")
	r.redis.Set(t.Context(), "q", "x", 0) // while it is being read
	good := r.subscribe(s, "good")
	r.publish("good", 0, 10)
	ackAll(t, good, 0, 10)
}

func TestSubscriber_LosesNothingWhenRedisIsKilled(t *testing.T) {
	t.Parallel()
	r := newTestRedis(t)
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
		for m := range c { // duplicates
			m.Ack()
		}
	}()
	r.expectEmpty("q")
}

// After a failover, Redis may lack what the handler stored before it acked. If the ack fails, the message is delivered again.
func TestSubscriber_RedeliversStoredAfterFailedAck(t *testing.T) {
	t.Parallel()
	r := newTestRedis(t)
	failed := newLogWatch("storing acks failed")
	s := r.subscriber(func(c *subscriber.Config) {
		c.MaxInFlight = func(string) int { return 3 }
		c.Log = slog.New(failed)
	})
	c := r.subscribe(s, "q")
	r.publish("q", 0, 3)
	delivered, stored, late := next(t, c), next(t, c), next(t, c)
	r.server.Kill()
	subscriber.MarkStored(stored)
	delivered.Ack()
	stored.Ack()
	select {
	case <-failed.seen:
	case <-time.After(patience):
		t.Fatal("the acks were stored while Redis was down")
	}
	subscriber.MarkStored(late)
	late.Ack()
	r.server.Restart()
	want := map[string]bool{stored.UUID: true, late.UUID: true}
	for range 2 {
		m := next(t, c)
		if !want[m.UUID] {
			t.Errorf("message %s was delivered again, want one of %v", m.UUID, want)
		}
		delete(want, m.UUID)
		subscriber.MarkStored(m)
		m.Ack()
	}
	r.expectEmpty("q")
}

// Acked messages whose ack is not stored are delivered again after a crash, so their number must be limited.
func TestSubscriber_LimitsUnflushedAcks(t *testing.T) {
	t.Parallel()
	r := newTestRedis(t)
	failed := newLogWatch("storing acks failed")
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
	// Four workers had a message when the third ack exceeded the limit.
	if acked > 2+4 {
		t.Errorf("got %d acks during the outage, want at most 6", acked)
	}
	r.server.Restart()
	go func() {
		for m := range c {
			m.Ack()
		}
	}()
	r.expectEmpty("q")
}

// logWatch is a log handler that closes seen when a message is logged.
type logWatch struct {
	slog.Handler
	line string
	once sync.Once
	seen chan struct{}
}

func newLogWatch(line string) *logWatch {
	return &logWatch{Handler: slog.DiscardHandler, line: line, seen: make(chan struct{})}
}

func (w *logWatch) Enabled(context.Context, slog.Level) bool { return true }

func (w *logWatch) Handle(_ context.Context, r slog.Record) error {
	if r.Message == w.line {
		w.once.Do(func() { close(w.seen) })
	}
	return nil
}
