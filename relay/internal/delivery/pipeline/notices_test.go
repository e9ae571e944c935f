package pipeline

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/delivery/notice"
	"github.com/hubrelay/hubrelay/relay/internal/delivery/store"
)

func filterOf(t *testing.T, topics ...string) relay.Filter {
	t.Helper()
	patterns, err := relay.ParsePatterns(topics)
	if err != nil {
		t.Fatal(err)
	}
	return relay.Filter{Topics: patterns}
}

// notices returns a publisher for the sinks "watch" (all operational topics), "few" (disabled sinks) and "all".
func (e *env) notices(o notice.Options, more ...notice.Listener) *notice.Publisher {
	e.t.Helper()
	var ids atomic.Int64
	o.Retries, o.States = &e.store.Retries, &e.store.States
	o.NewID = func() string { return fmt.Sprintf("%024d", ids.Add(1)) }
	n := notice.NewPublisher(o)
	n.SetListeners(append(more,
		notice.Listener{Sink: "s", Filter: filterOf(e.t, "hubrelay.*")},
		notice.Listener{Sink: "watch", Filter: filterOf(e.t, "hubrelay.*", "container.*")},
		notice.Listener{Sink: "few", Filter: filterOf(e.t, "hubrelay.sink.disabled")},
		notice.Listener{Sink: "all", Filter: filterOf(e.t, "*")},
	))
	return n
}

// noticesFor returns the notices that are scheduled for a sink, oldest first.
func (e *env) noticesFor(sink string) []string {
	e.t.Helper()
	bodies, err := e.client.HGetAll(e.t.Context(), "hubrelay:records:"+sink).Result()
	if err != nil {
		e.t.Fatal(err)
	}
	var ids, list []string
	for id := range bodies {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	for _, id := range ids {
		r, err := store.DecodeRecord(bodies[id])
		if err != nil || r.Notifications[0].ID != id {
			e.t.Fatal(bodies[id], err)
		}
		list = append(list, r.Notifications[0].Data)
	}
	return list
}

// noticeObject is the object of a notice.
type noticeObject struct {
	ID, State, Error, Sink, Topic string
	Attempts, Count               int
}

func objectOf(t *testing.T, data string) noticeObject {
	t.Helper()
	var o struct{ Object noticeObject }
	if err := json.Unmarshal([]byte(data), &o); err != nil {
		t.Fatal(err)
	}
	return o.Object
}

// If two nodes disable a sink, each listener gets one notice, and the sink itself none.
func TestNotices_DisabledAndRecovered(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	n := e.notices(notice.Options{})
	gone := func(config string) *Pipeline {
		return e.pipeline(&fakeSink{answer: answers(relay.Gone(&relay.ResponseError{Status: 410}))}, func(o *Options) {
			o.Notices, o.Fingerprint = n, config
		})
	}
	for _, p := range []*Pipeline{gone("v1"), gone("v1")} {
		if err := handleDelivery(t.Context(), p, delivery("d1")); !errors.Is(err, ErrDisabled) {
			t.Fatal(err)
		}
	}
	disabled := `{"topic":"hubrelay.sink.disabled","object":{"id":"s","state":"disabled","error":"status 410"},` +
		`"context":{"hub_id":"","account_id":"","environments":[],"dns_zones":[],"clusters":[],"containers":[]},` +
		`"flags":null}`
	for sink, want := range map[string][]string{"watch": {disabled}, "few": {disabled}, "all": nil, "s": nil} {
		if diff := cmp.Diff(want, e.noticesFor(sink)); diff != "" {
			t.Errorf("%s was sent (-want +got):\n%s", sink, diff)
		}
	}

	// Its configuration changed, and two nodes notice that.
	for _, p := range []*Pipeline{gone("v2"), gone("v2")} {
		if err := p.Refresh(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	told := e.noticesFor("watch")
	if o := objectOf(t, told[len(told)-1]); len(told) != 2 || o.ID != "s" || o.State != "active" {
		t.Errorf("sent %v", told)
	}
	if len(e.noticesFor("few")) != 1 {
		t.Error("a notice without a matching topic was sent")
	}
}

// An ordered sink gets the notice about a disabled sink before the one about its recovery.
func TestNotices_Order(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	n := e.notices(notice.Options{}, notice.Listener{
		Sink: "watch", Filter: filterOf(t, "hubrelay.*"), Ordering: store.OrderingHub,
	})
	sink := &fakeSink{answer: answers(errFar, nil)}
	p := e.pipeline(sink, func(o *Options) { ordered(store.OrderingHub)(o); o.Name = "watch" })
	if err := n.SinkDisabled(t.Context(), "s", "it is gone"); err != nil {
		t.Fatal(err)
	}
	if err := n.SinkRecovered(t.Context(), "s"); err != nil {
		t.Fatal(err)
	}
	e.lead(p, newQueue(1, 0))
	testkit.WaitForValue(t, "both are sent", 0, func() int { return len(e.noticesFor("watch")) })
	var topics []string
	for _, d := range sink.deliveries() {
		topics = append(topics, d.Notifications[0].Topic)
	}
	if want := []string{relay.TopicSinkDisabled, relay.TopicSinkDisabled, relay.TopicSinkRecovered}; !slices.Equal(
		topics,
		want,
	) {
		t.Errorf("sent %v", topics)
	}
}

// While Redis takes no notice, retries of other sinks continue.
func TestNotices_DoNotBlockRetries(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	if _, err := e.store.States.Disable(t.Context(), "gone", "it is gone", "v1", time.Now()); err != nil {
		t.Fatal(err)
	}
	e.scheduleDue(1)
	if err := e.client.ConfigSet(t.Context(), "maxmemory", "1").Err(); err != nil {
		t.Fatal(err)
	}
	n := e.notices(notice.Options{})
	other := e.pipeline(&fakeSink{answer: answers(errFar, errFar, nil)}, nil)
	recovered := e.pipeline(&fakeSink{answer: answers(nil)}, func(o *Options) {
		o.Name, o.Fingerprint, o.Notices = "gone", "v2", n
	})
	r := e.newNode(0, other, recovered)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); r.run(ctx) }()
	defer func() { cancel(); <-done }()
	testkit.WaitForValue(t, "the other's delivery is tried again", 0, func() int64 { return e.scheduledCount() })
}

// Resume reports a disabled sink even if it was paused later.
func TestStates_ResumeReportsDisabled(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	ctx := t.Context()
	for _, c := range []struct {
		before func() error
		want   bool
	}{
		{func() error { return nil }, false},
		{func() error { return e.store.States.Pause(ctx, "s") }, false},
		{func() error { _, err := e.store.States.Disable(ctx, "s", "gone", "v1", time.Now()); return err }, true},
		{func() error {
			_, err := e.store.States.Disable(ctx, "s", "gone", "v1", time.Now())
			return errors.Join(err, e.store.States.Pause(ctx, "s"), e.store.States.Pause(ctx, "s"))
		}, true},
	} {
		if err := c.before(); err != nil {
			t.Fatal(err)
		}
		if got, err := e.store.States.Resume(ctx, "s"); got != c.want || err != nil {
			t.Errorf("recovered %v, %v", got, err)
		}
	}
}

// The first dead letter is published at once, further ones at most once per interval with their number.
func TestDeadLetterNotices_Coalesced(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	now := time.Now()
	p := e.pipeline(&fakeSink{answer: answers(relay.Permanent(&relay.ResponseError{Status: 400}))}, func(o *Options) {
		o.Notices, o.Now = e.notices(notice.Options{}), func() time.Time { return now }
	})
	r := e.newNode(0, p)
	counts := func() (list []int) {
		for _, data := range e.noticesFor("watch") {
			list = append(list, objectOf(t, data).Count)
		}
		return list
	}
	kill := func(n int) {
		for range n {
			if err := handleDelivery(t.Context(), p, delivery("d1")); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, step := range []struct {
		kill int
		wait time.Duration
		want []int
	}{{1, 0, []int{1}}, {5, 9 * time.Second, []int{1}}, {1, 2 * time.Second, []int{1, 6}}, {3, 0, []int{1, 6}}} {
		kill(step.kill)
		now = now.Add(step.wait)
		r.reportPipelines(t.Context(), r.listPipelines(), false)
		if got := counts(); !slices.Equal(got, step.want) {
			t.Fatalf("sent %v, want %v", got, step.want)
		}
	}
	r.Flush(t.Context())
	r.Flush(t.Context())
	if got := counts(); !slices.Equal(got, []int{1, 6, 3}) {
		t.Errorf("sent %v at the end", got)
	}
	first := e.noticesFor("watch")[0]
	want := `{"topic":"hubrelay.deadletter.created","object":{"id":"d1","state":"permanent","error":"status 400",` +
		`"sink":"s","topic":"container.error","attempts":1,"count":1},"context":{"hub_id":"h1","account_id":"a1",` +
		`"environments":[],"dns_zones":[],"clusters":[],"containers":[]},"flags":null}`
	if diff := cmp.Diff(want, first); diff != "" {
		t.Error(diff)
	}
}

// There is no notice about the dead letter of a notice, and no sink gets one about itself.
func TestDeadLetterNotices_NotAboutNotices(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	n := e.notices(notice.Options{})
	reject := func(o *Options) { o.Name, o.Notices = "watch", n }
	p := e.pipeline(&fakeSink{answer: answers(relay.Permanent(errFar))}, reject)
	notice := delivery("d1")
	notice.Notifications[0].Topic = relay.TopicSinkDisabled
	if err := handleDelivery(t.Context(), p, notice); err != nil {
		t.Fatal(err)
	}
	if got := append(e.noticesFor("s"), e.noticesFor("watch")...); len(got) != 0 {
		t.Errorf("sent %v", got)
	}
	// There is one about other notifications, also if a digest contains both.
	both := delivery("d2")
	both.Notifications = append(notice.Notifications, both.Notifications...)
	if err := handleDelivery(t.Context(), p, both); err != nil {
		t.Fatal(err)
	}
	if len(e.noticesFor("s")) != 1 || len(e.noticesFor("watch")) != 0 {
		t.Errorf("sent s %v, watch %v", e.noticesFor("s"), e.noticesFor("watch"))
	}
}

// A full retry queue drops notices and counts them. Other listeners still get theirs.
func TestNotices_DroppedWhenFull(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	dropped := map[string]int{}
	n := e.notices(notice.Options{
		Dropped: func(sink string) { dropped[sink]++ },
	}, notice.Listener{Sink: "small", Filter: filterOf(t, "hubrelay.*"), Backlog: 1})
	for range 3 {
		if err := n.SinkRecovered(t.Context(), "x"); err != nil {
			t.Fatal(err)
		}
	}
	if len(e.noticesFor("small")) != 1 || len(e.noticesFor("watch")) != 3 || dropped["small"] != 2 ||
		len(dropped) != 1 {
		t.Errorf("small %d, watch %d, dropped %v", len(e.noticesFor("small")), len(e.noticesFor("watch")), dropped)
	}
}

// A notice that cannot be sent without Redis is sent later.
func TestDeadLetterNotices_RedisOutage(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	now := time.Now()
	p := e.pipeline(&fakeSink{answer: answers(relay.Permanent(errFar))}, func(o *Options) {
		o.Notices, o.Now = e.notices(notice.Options{}), func() time.Time { return now }
	})
	r := store.NewRecord(delivery("d1"), now)
	e.server.Kill()
	p.deadLetters.Add(t.Context(), "d1", ReasonPermanent, r, errFar)
	e.server.Restart()
	p.deadLetters.Add(t.Context(), "d2", ReasonPermanent, r, errFar) // too early for another try
	testkit.WaitForValue(t, "sent", 1, func() int {
		now = now.Add(time.Second)
		p.deadLetters.Flush(t.Context(), false)
		return len(e.noticesFor("watch"))
	})
	if o := objectOf(t, e.noticesFor("watch")[0]); o.Count != 2 || o.ID != "d2" {
		t.Errorf("%+v", o)
	}
}

// A sample has the members of a real notice and is marked. It is scheduled for no sink.
func TestPublisher_Sample(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	notices := e.notices(notice.Options{})
	for topic, object := range map[string]string{
		relay.TopicSinkDisabled:  `{"id":"sample","state":"disabled","error":"a sample; nothing happened"}`,
		relay.TopicSinkRecovered: `{"id":"sample","state":"active","error":""}`,
		relay.TopicDeadLetterCreated: `{"id":"000000000000000000000000","state":"permanent",` +
			`"error":"a sample; nothing happened",` +
			`"sink":"sample","topic":"container.created","attempts":1,"count":1}`,
	} {
		n, err := notices.Sample(topic)
		if err != nil || n.Topic != topic || len(n.ID) != 24 || n.Cursor != "" {
			t.Errorf("%s: %+v, %v", topic, n, err)
		}
		var got struct {
			Topic  string
			Object json.RawMessage
			Sample bool
		}
		if err := json.Unmarshal(n.Data, &got); err != nil || got.Topic != topic || string(got.Object) != object ||
			!got.Sample {
			t.Errorf("%s: %s, %v", topic, n.Data, err)
		}
	}
	for _, topic := range relay.OperationalTopics() {
		if _, err := notices.Sample(topic.Name); err != nil {
			t.Error(err)
		}
	}
	if _, err := notices.Sample("container.created"); err == nil {
		t.Error("Sample() = nil error for another topic")
	}
	if keys := e.client.Keys(t.Context(), "*").Val(); len(keys) != 0 {
		t.Errorf("stored %v", keys)
	}
	if err := notices.SinkDisabled(t.Context(), "s", "it is gone"); err != nil {
		t.Fatal(err)
	}
	if told := e.noticesFor("watch"); len(told) != 1 || strings.Contains(told[0], "sample") {
		t.Errorf("a real one: %v", told)
	}
}

// A gap of a source is published to all listeners. A repetition with the same ID is scheduled once.
func TestPublisher_SourceGap(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	n := e.notices(notice.Options{})
	for range 2 {
		if err := n.SourceGap(t.Context(), "up", "h1", "0123456789abcdef01234567", "it was trimmed"); err != nil {
			t.Fatal(err)
		}
	}
	want := `{"topic":"hubrelay.source.gap","object":{"id":"up","state":"gap","error":"it was trimmed"},` +
		`"context":{"hub_id":"h1","account_id":"","environments":[],"dns_zones":[],"clusters":[],"containers":[]},` +
		`"flags":null}`
	for sink, list := range map[string][]string{"watch": {want}, "s": {want}, "few": nil, "all": nil} {
		if diff := cmp.Diff(list, e.noticesFor(sink)); diff != "" {
			t.Errorf("%s was sent (-want +got):\n%s", sink, diff)
		}
	}
}
