package pipeline

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/delivery/store"
	"github.com/hubrelay/hubrelay/relay/internal/replay"
)

// addDeadLetters makes dead letters of deliveries.
func (e *env) addDeadLetters(t *testing.T, ids ...string) {
	t.Helper()
	p := e.pipeline(&fakeSink{answer: answers(relay.Permanent(errFar))}, nil)
	for _, id := range ids {
		if err := handleDelivery(t.Context(), p, delivery(id)); err != nil {
			t.Fatal(err)
		}
	}
}

// write stores a dead letter with a topic and a hub.
func (e *env) write(t *testing.T, id, topic, hub string) string {
	t.Helper()
	at, err := e.client.XAdd(t.Context(), &redis.XAddArgs{Stream: "hubrelay:deadletters:s", Values: []any{
		"id", id, "topic", topic, "hub", hub, "account", "a1", "data", `{"topic":"` + topic + `"}`,
		"reason", "permanent: x", "attempts", `[{"error":"x"}]`, "time", "2026-11-21T04:00:00Z",
	}}).Result()
	if err != nil {
		t.Fatal(err)
	}
	if err := e.client.HSet(t.Context(), "hubrelay:deadindex:s", id, at).Err(); err != nil {
		t.Fatal(err)
	}
	return at
}

func TestDeadLetters_List(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	for i := range 250 {
		topic, hub := "job.created", "h1"
		if i%100 == 0 {
			topic, hub = "container.error", "h2"
		}
		e.write(t, fmt.Sprintf("d%d", i), topic, hub)
	}
	for _, c := range []struct {
		name string
		sel  store.Selection
		want int
	}{
		{"all", store.Selection{Limit: 1000}, 250},
		{"topic", store.Selection{Topics: []string{"*.error"}}, 3},
		{"hub", store.Selection{Hub: "h2"}, 3},
		{"both", store.Selection{Hub: "h1", Topics: []string{"*.error"}}, 0},
		{"exclusion", store.Selection{Topics: []string{"!*.error"}, Limit: 1000}, 247},
		{"since long", store.Selection{Since: time.Now().Add(-time.Hour), Limit: 1000}, 250},
		{"since later", store.Selection{Since: time.Now().Add(time.Hour)}, 0},
		{"default limit", store.Selection{}, store.DefaultPage},
	} {
		page, err := e.store.DeadLetters.List(t.Context(), "s", c.sel)
		if err != nil || len(page.Letters) != c.want {
			t.Errorf("%s: %d, want %d, %v", c.name, len(page.Letters), c.want, err)
		}
	}
	var pages, letters int
	for sel := (store.Selection{Limit: 7}); ; pages++ {
		page, err := e.store.DeadLetters.List(t.Context(), "s", sel)
		if err != nil {
			t.Fatal(err)
		}
		for i, l := range page.Letters {
			if want := fmt.Sprintf("d%d", letters+i); l.ID != want || l.Attempts != 1 || l.Time.IsZero() ||
				l.Reason == "" ||
				l.Account != "a1" {
				t.Fatalf("%+v, want %s", l, want)
			}
		}
		letters += len(page.Letters)
		if sel.After = page.Next; page.Next == "" {
			break
		}
	}
	if letters != 250 || pages != 35 {
		t.Errorf("%d letters on %d pages", letters, pages+1)
	}
	for _, sel := range []store.Selection{{After: "x"}, {After: "1-"}, {After: "1-1~+"}, {Topics: []string{"a b"}}} {
		if _, err := e.store.DeadLetters.List(t.Context(), "s", sel); !errors.Is(err, store.ErrSelection) {
			t.Errorf("%+v: %v", sel, err)
		}
	}
}

func TestDeadLetters_Get(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.addDeadLetters(t, "d1", "d2")
	c, err := e.store.DeadLetters.Get(t.Context(), "s", "d1")
	if err != nil {
		t.Fatal(err)
	}
	want := delivery("d1").Notifications[0]
	if c.ID != "d1" || c.Attempts != 1 || len(c.History) != 1 || c.History[0].Status != 500 ||
		len(c.Notifications) != 1 ||
		string(c.Notifications[0].Data) != string(want.Data) ||
		c.Notifications[0].Hub != "h1" ||
		c.Raw != "" {
		t.Errorf("%+v", c)
	}
	if _, err := e.store.DeadLetters.Get(t.Context(), "s", "nobody"); !errors.Is(err, store.ErrNoDeadLetter) {
		t.Error(err)
	}
	if _, err := e.store.DeadLetters.Get(t.Context(), "s", ""); !errors.Is(err, store.ErrNoDeadLetter) {
		t.Error(err)
	}
	e.client.XTrimMaxLen(t.Context(), "hubrelay:deadletters:s", 0)
	if _, err := e.store.DeadLetters.Get(t.Context(), "s", "d2"); !errors.Is(err, store.ErrNoDeadLetter) {
		t.Error(err)
	}
}

// Changes by ID read several pages, and use the newer of two dead letters with one ID.
func TestDeadLetterChanges_ManyIDs(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	ids := make([]string, 0, 230)
	for i := range 230 {
		ids = append(ids, fmt.Sprintf("d%d", i))
		e.write(t, ids[i], "job.created", "h1")
	}
	newer := e.write(t, "d7", "job.updated", "h1")
	if c, err := e.store.DeadLetters.Get(t.Context(), "s", "d7"); err != nil || c.Topic != "job.updated" {
		t.Errorf("%+v, %v: not the one at %s", c, err, newer)
	}
	got, err := e.store.DeadLetters.Drop(t.Context(), "s", append([]string{"nobody"}, ids[:120]...))
	if err != nil || got.Done != 120 || len(got.Unchanged) != 1 {
		t.Errorf("%+v, %v", got, err)
	}
	got, err = e.replayDeadLetters(store.ReplayOptions{}, ids[120:]...)
	if err != nil || got.Done != 110 || len(got.Unchanged) != 0 || e.scheduledCount() != 110 {
		t.Errorf("%+v, %v, %d scheduled", got, err, e.scheduledCount())
	}
	if n := len(e.deadLetters()); n != 1 {
		t.Errorf("%d left, want the older of two", n)
	}
}

func TestDeadLetters_ReplayStartsNewSchedule(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.addDeadLetters(t, "d1")
	got, err := e.replayDeadLetters(store.ReplayOptions{}, "d1", "d1", "nobody")
	if err != nil || got.Done != 1 || len(got.Unchanged) != 2 {
		t.Fatalf("%+v, %v", got, err)
	}
	if len(e.deadLetters()) != 0 || e.scheduledCount() != 1 {
		t.Fatalf("%d dead letters, %d scheduled", len(e.deadLetters()), e.scheduledCount())
	}
	sink := &fakeSink{answer: answers(errFar, relay.Permanent(errFar))}
	e.retries(e.pipeline(sink, nil))
	testkit.WaitForValue(t, "dead again", 1, func() int { return len(e.deadLetters()) })
	sink.mu.Lock()
	if d := sink.got[0]; d.Attempt != 1 || d.ID != "d1" ||
		string(d.Notifications[0].Data) != string(delivery("d1").Notifications[0].Data) ||
		d.Notifications[0].Account != "a1" {
		t.Errorf("%+v", d)
	}
	sink.mu.Unlock()
	c, err := e.store.DeadLetters.Get(t.Context(), "s", "d1")
	if err != nil || c.Attempts != 3 {
		t.Errorf("%+v, %v: the history is not kept", c, err)
	}
}

func TestDeadLetters_ReplayKeepsSealedAndSkipsUnreadable(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	ctx := t.Context()
	d := delivery("b1")
	d.Notifications = append(d.Notifications, delivery("x").Notifications...)
	p := e.pipeline(&fakeSink{answer: answers(relay.Permanent(errFar))}, nil)
	if err := handleDelivery(ctx, p, d); err != nil {
		t.Fatal(err)
	}
	e.write(t, "bad", "", "")
	c, err := e.store.DeadLetters.Get(ctx, "s", "b1")
	if err != nil || len(c.Notifications) != 2 || c.Notifications[1].ID != "x" {
		t.Fatalf("%+v, %v", c, err)
	}
	got, err := e.replayAllDeadLetters(store.ReplayOptions{})
	if err != nil || got.Done != 1 || len(got.Unchanged) != 1 || got.Unchanged[0].Status != store.UnchangedUnreadable || len(e.deadLetters()) != 1 {
		t.Errorf("%+v, %v", got, err)
	}
	r, err := store.DecodeRecord(e.client.HGet(ctx, "hubrelay:records:s", "b1").Val())
	if err != nil || len(r.Notifications) != 2 || r.AttemptCount != 0 || len(r.Attempts) != 1 {
		t.Errorf("%+v, %v", r, err)
	}
}

// Dead letters of a formerly ordered sink are replayed without order.
func TestDeadLetters_ReplayAfterOrdering(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	for i := range 2 {
		d := ofHub("h1", i)
		key := store.OrderingHub.StoredKey(d.Notifications[0])
		entry, err := store.NewDeadLetter(d.ID, store.NewRecord(d, time.Now()), "it died", key, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := e.store.DeadLetters.Add(t.Context(), store.Claim{Sink: "s", ID: d.ID}, store.DeadLetterLimit{}, entry); err != nil {
			t.Fatal(err)
		}
	}
	sink := &fakeSink{answer: func(_ context.Context, d relay.Delivery) error {
		if d.ID == ofHub("h1", 0).ID {
			return relay.RetryAfter(errFar, time.Hour)
		}
		return nil
	}}
	p := e.pipeline(sink, nil)
	if c, err := e.replayAllDeadLetters(store.ReplayOptions{}); err != nil ||
		c.Done != 2 {
		t.Fatalf("%+v, %v", c, err)
	}
	e.retries(p)
	testkit.WaitForValue(t, "the second was attempted", 1, func() int { return sink.attempts(ofHub("h1", 1).ID) })
}

func TestDeadLetters_ReplayKeepsScheduled(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	ctx := t.Context()
	e.addDeadLetters(t, "d1")
	if _, err := e.store.Retries.Schedule(
		ctx, "s", store.Scheduled{ID: "d1", Body: "as it is"}, time.Hour, time.Now()); err != nil {
		t.Fatal(err)
	}
	if got, err := e.replayDeadLetters(store.ReplayOptions{}, "d1"); err != nil ||
		got.Done != 1 {
		t.Errorf("%+v, %v", got, err)
	}
	if body := e.client.HGet(ctx, "hubrelay:records:s", "d1").Val(); body != "as it is" || len(e.deadLetters()) != 0 {
		t.Errorf("body %q", body)
	}
}

func TestDeadLetters_ChangeSelected_Limits(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	for i := range 250 {
		topic := "job.created"
		if i%2 == 0 {
			topic = "job.error"
		}
		e.write(t, fmt.Sprintf("d%d", i), topic, "h1")
	}
	sel := store.Selection{Topics: []string{"*.error"}, Limit: 60}
	var done []int
	for {
		got, err := e.store.DeadLetters.DropSelected(t.Context(), "s", sel)
		if err != nil || len(got.Unchanged) != 0 {
			t.Fatalf("%+v, %v", got, err)
		}
		done = append(done, got.Done)
		if sel.After = got.Next; got.Next == "" {
			break
		}
		e.write(t, "later", "late.error", "h1") // it did not exist when the change started
	}
	if !slices.Equal(done, []int{60, 60, 5}) || len(e.deadLetters()) != 127 {
		t.Errorf("%v, %d left", done, len(e.deadLetters()))
	}
}

func TestDeadLetters_AddReplaces(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.addDeadLetters(t, "d1", "d1")
	if n := len(e.deadLetters()); n != 1 {
		t.Errorf("%d dead letters", n)
	}
}

// fakeLog is a log of one partition with cursors like "5-0".
type fakeLog struct {
	entries []relay.Notification
	reached string
	queued  map[string]bool
	covers  bool
}

func (l *fakeLog) Range(_ context.Context, _ int, after string, count int) ([]relay.Notification, error) {
	var list []relay.Notification
	for _, n := range l.entries {
		if l.IsAfter(n.Cursor, after) && len(list) < count {
			list = append(list, n)
		}
	}
	return list, nil
}
func (l *fakeLog) HasAllAfter(context.Context, int, string) (bool, error) { return l.covers, nil }
func (l *fakeLog) FilledTo(context.Context, int, string) (string, error)  { return l.reached, nil }
func (l *fakeLog) Queued(_ context.Context, _ int, _ string, cursors []string) ([]bool, error) {
	held := make([]bool, len(cursors))
	for i, c := range cursors {
		held[i] = l.queued[c]
	}
	return held, nil
}

func (l *fakeLog) IsAfter(cursor, position string) bool {
	var a, b int
	_, _ = fmt.Sscanf(cursor, "%d-", &a)
	_, _ = fmt.Sscanf(position, "%d-", &b)
	return a > b
}

func TestReplay(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	ctx := t.Context()
	log := &fakeLog{reached: "240-0", queued: map[string]bool{"200-0": true}, covers: true}
	for i := 1; i <= 250; i++ {
		n := delivery(fmt.Sprintf("n%d", i)).Notifications[0]
		n.Cursor = fmt.Sprintf("%d-0", i)
		if i%2 == 1 {
			n.Topic = "job.created"
		}
		log.entries = append(log.entries, n)
	}
	if _, err := e.store.Retries.Schedule(
		ctx, "s", store.Scheduled{ID: "n100", Body: "as it is"}, time.Hour, time.Now()); err != nil {
		t.Fatal(err)
	}
	topics, err := relay.ParsePatterns([]string{"*.error"})
	if err != nil {
		t.Fatal(err)
	}
	request := replay.Request{Sink: "s", Partitions: 1, Filter: relay.Filter{Topics: topics}, After: replay.StartAt("10-0")}
	got, err := e.replay(ctx, log, request)
	if err != nil || got != (replay.Result{Scheduled: 113, Waiting: 2, Complete: true}) {
		t.Fatalf("%+v, %v", got, err)
	}
	// A repetition changes nothing.
	if got, err = e.replay(ctx, log, request); err != nil || got.Scheduled != 0 || e.scheduledCount() != 114 {
		t.Fatalf("%+v, %v", got, err)
	}
	if body := e.client.HGet(ctx, "hubrelay:records:s", "n100").Val(); body != "as it is" {
		t.Errorf("body %q", body)
	}
	sink := &fakeSink{answer: answers(nil)}
	e.client.HDel(ctx, "hubrelay:records:s", "n100")
	e.client.ZRem(ctx, "hubrelay:retry:s", "n100")
	e.client.ZRem(ctx, "hubrelay:arrivals:s", "n100")
	e.retries(e.pipeline(sink, nil))
	testkit.WaitForValue(t, "all delivered", 0, func() int64 { return e.scheduledCount() })
	if sink.attempts("") != 113 || sink.attempts("n12") != 1 {
		t.Errorf("%d attempts", sink.attempts(""))
	}
	log.covers, request.After = false, replay.StartAt("0-0")
	if got, err = e.replay(ctx, log, request); err != nil || got.Complete {
		t.Errorf("%+v, %v", got, err)
	}
	request.After = replay.StartAt("300-0")
	if got, err = e.replay(ctx, log, request); err != nil || got.Scheduled != 0 {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestPositionAt(t *testing.T) {
	t.Parallel()
	for ms, want := range map[int64]string{
		-5: "0-0", 0: "0-0", 1: "0-18446744073709551615", 1732153000123: "1732153000122-18446744073709551615",
	} {
		if got := replay.PositionAt(time.UnixMilli(ms)); got != want {
			t.Errorf("%d: %s, want %s", ms, got, want)
		}
	}
}
