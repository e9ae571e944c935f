package dispatch

import (
	"log/slog"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay/internal/eventlog"
	"github.com/hubrelay/hubrelay/relay/internal/queue"
)

// A promoted replica may lack the newest entries and have a slow clock. Its new entries may then have IDs before the
// dispatcher's position. The lease survives, so only the maintenance makes the dispatcher read its state.
func TestDispatcher_RecoversFromRollback(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.run(e.options(Sink{Name: "a", FromStart: true}), true)
	e.publish("x", "h1", 3)
	testkit.WaitForValue(t, "the first entries", 3, func() int64 { return e.queueLength("a") })
	c := e.b.Commands()
	k := e.b.Keys()
	keys := []string{
		eventlog.Key(k, 0), eventlog.DispatchPositionKey(k, 0), queue.SinkPositionsKey(k, 0), queue.Key(k, "a", 0),
	}
	if err := c.Del(t.Context(), keys...).Err(); err != nil {
		t.Fatal(err)
	}
	err := c.XAdd(t.Context(), &redis.XAddArgs{
		Stream: eventlog.Key(k, 0), ID: "5-1",
		Values: []string{"id", "late", "topic", "x", "hub", "h1", "account", "", "data", "1"},
	}).Err()
	if err != nil {
		t.Fatal(err)
	}
	testkit.WaitForValue(t, "the entry with the lower ID", 1, func() int64 { return e.queueLength("a") })
}

// A sink that is configured again after the log was trimmed beyond its position has lost entries.
func TestDispatcher_LogsLossOfReturningSink(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	a, b := Sink{Name: "a", FromStart: true}, Sink{Name: "b", FromStart: true}
	stop := e.run(e.options(a, b), true)
	e.publish("x", "h1", 1)
	testkit.WaitFor(t, "both queues", func() bool { return e.queueLength("a") == 1 && e.queueLength("b") == 1 })
	stop()
	stop = e.run(e.options(a), true)
	e.publish("y", "h1", 3)
	testkit.WaitForValue(t, "queue a", 4, func() int64 { return e.queueLength("a") })
	stop()
	if err := e.b.Commands().XTrimMaxLen(t.Context(), eventlog.Key(e.b.Keys(), 0), 1).Err(); err != nil {
		t.Fatal(err)
	}
	var out testkit.Buffer
	o := e.options(a, b)
	o.Logger = slog.New(slog.NewTextHandler(&out, nil))
	e.run(o, true)
	testkit.WaitForValue(t, "sink b to catch up", 2, func() int64 { return e.queueLength("b") })
	if !strings.Contains(out.String(), "sink=b") || !strings.Contains(out.String(), "no longer has all entries") {
		t.Errorf("got no message about the loss: %s", out.String())
	}
}
