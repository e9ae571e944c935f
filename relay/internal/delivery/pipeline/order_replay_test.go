package pipeline

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/hubrelay/hubrelay/internal/streamid"
	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/delivery/store"
	"github.com/hubrelay/hubrelay/relay/internal/replay"
)

// Dead letters are replayed in order, even if the sink was not ordered when they were created.
func TestOrder_ReplayDeadLetters(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	const each = 60
	var got successes
	var broken sync.Map
	broken.Store("all", true)
	sink := got.around(func(ctx context.Context, d relay.Delivery) error {
		if _, bad := broken.Load("all"); bad {
			return relay.Permanent(&relay.ResponseError{Status: 400})
		}
		return flaky(ctx, d)
	})
	before := e.pipeline(sink, nil) // the dead letters of hub2 are from before the ordering
	for i := range each {
		if err := handleDelivery(t.Context(), before, ofHub("hub2", i)); err != nil {
			t.Fatal(err)
		}
	}
	e.lead(e.pipeline(sink, ordered(store.OrderingHub)), newQueue(2, each))
	testkit.WaitFor(t, "all are dead", func() bool { return len(e.deadLetters()) == 3*each && e.idle() })
	broken.Delete("all")
	var ids []string
	for _, l := range e.deadLetters() {
		ids = append(ids, fmt.Sprint(l["id"]))
	}
	slices.Reverse(ids) // the order of the IDs does not matter
	if c, err := e.replayDeadLetters(store.ReplayOptions{Ordering: store.OrderingHub}, ids[:100]...); err != nil ||
		c.Done != 100 {
		t.Fatal(c, err)
	}
	testkit.WaitFor(t, "a hundred arrived", func() bool { return got.count() == 100 && e.idle() })
	for h := range 3 {
		if list := got.of(fmt.Sprint("hub", h)); !slices.IsSorted(list) {
			t.Errorf("not in order: %v", list)
		}
	}
	if c, err := e.replayAllDeadLetters(store.ReplayOptions{Ordering: store.OrderingHub}); err != nil ||
		c.Done != 3*each-100 {
		t.Fatal(c, err)
	}
	testkit.WaitFor(t, "all arrived", func() bool { return got.count() == 3*each && e.idle() })
	if got.both > 0 {
		t.Errorf("two deliveries with one key were in flight %d times", got.both)
	}
}

// replayLog is a log of one partition without queued entries.
type replayLog []relay.Notification

func (l replayLog) Range(_ context.Context, _ int, after string, count int) ([]relay.Notification, error) {
	i := 0
	for i < len(l) && !l.IsAfter(l[i].Cursor, after) {
		i++
	}
	return l[i:min(len(l), i+count)], nil
}
func (l replayLog) HasAllAfter(context.Context, int, string) (bool, error) { return true, nil }
func (l replayLog) FilledTo(context.Context, int, string) (string, error) {
	return l[len(l)-1].Cursor, nil
}

func (l replayLog) Queued(_ context.Context, _ int, _ string, cursors []string) ([]bool, error) {
	return make([]bool, len(cursors)), nil
}

func (l replayLog) IsAfter(cursor, position string) bool {
	return streamid.Compare(cursor, position) > 0
}

func TestOrder_ReplayLog(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	const each = 150
	var got successes
	var log replayLog
	for i := range each {
		for h := range 3 {
			n := ofHub(fmt.Sprint("hub", h), i).Notifications[0]
			n.Cursor = fmt.Sprintf("%d-0", len(log)+1)
			log = append(log, n)
		}
	}
	topics, err := relay.ParsePatterns([]string{"*"})
	if err != nil {
		t.Fatal(err)
	}
	p := e.pipeline(got.around(flaky), ordered(store.OrderingHub))
	done, err := e.replay(
		t.Context(),
		log,
		replay.Request{
			Sink:       "s",
			Ordering:   store.OrderingHub,
			Filter:     relay.Filter{Topics: topics},
			Partitions: 1,
			After:      replay.StartAt("0-0"),
		},
	)
	if err != nil || done.Scheduled != 3*each {
		t.Fatal(done, err)
	}
	q := newQueue(3, 0)
	for h := range 3 {
		q.add(fmt.Sprint("hub", h), each, each+50)
	}
	e.lead(p, q)
	testkit.WaitFor(t, "all arrived", func() bool { return got.count() >= 3*(each+50) && q.length() == 0 && e.idle() })
	got.check(t, 3, each+50, 0)
	if got.both > 0 {
		t.Errorf("two deliveries with one key were in flight %d times", got.both)
	}
}
