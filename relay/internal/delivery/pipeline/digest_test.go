package pipeline

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/delivery/admission"
	"github.com/hubrelay/hubrelay/relay/internal/delivery/store"
)

// event returns the i-th notification of a minute. Its ID contains the second.
func event(i int, topic, hub string, clusters ...string) relay.Delivery {
	id := fmt.Sprintf("%08x%016x", 1_760_000_000+i, i)
	list, _ := json.Marshal(clusters)
	return relay.Delivery{ID: id, Attempt: 1, Notifications: []relay.Notification{{
		ID: id, Topic: topic, Hub: hub, Account: "a1", Cursor: fmt.Sprintf("%d-1", i+5),
		Data: fmt.Appendf(
			nil,
			`{"topic" : %q,"object":{},"n":12345678901234567890,"s":"<€&>\u2028/",`+
				`"context":{"hub_id":%q,"clusters":%s}}`,
			topic,
			hub,
			list,
		),
	}}}
}

func at(i int) time.Time { return time.Unix(int64(1_760_000_000+i), 0).UTC() }

func gathering(wait time.Duration, most int, by ...string) func(*Options) {
	return func(o *Options) { o.Digest = Digest{Wait: wait, Max: most, By: by} }
}

func (f *fakeSink) deliveries() []relay.Delivery {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.got)
}

// due makes every open digest of "s" due.
func (e *env) due() {
	e.t.Helper()
	ctx := context.Background()
	groups, err := e.client.ZRange(ctx, "hubrelay:digests:s", 0, -1).Result()
	if err != nil {
		e.t.Fatal(err)
	}
	for _, g := range groups {
		e.client.ZIncrBy(ctx, "hubrelay:digests:s", -1e12, g)
	}
	if err := e.store.States.SignalChange(ctx); err != nil {
		e.t.Fatal(err)
	}
}

// sealDigest starts the retries of p, and seals a digest of n events.
func (e *env) sealDigest(p *Pipeline, n int) {
	e.t.Helper()
	for i := range n {
		if err := handleDelivery(e.t.Context(), p, event(i, "a.b", "h1")); err != nil {
			e.t.Fatal(err)
		}
	}
	e.retries(p)
	e.due()
}

func (e *env) digestedCount() int64 {
	f, err := e.store.Stats.Read(context.Background(), []string{"s"})
	if err != nil {
		e.t.Fatal(err)
	}
	return f[0].InDigests
}

// left returns the keys in Redis, without the permanent ones.
func (e *env) left() []string {
	keys, err := e.client.Keys(context.Background(), "hubrelay:*").Result()
	if err != nil {
		e.t.Fatal(err)
	}
	return slices.DeleteFunc(
		keys,
		func(k string) bool {
			return k == "hubrelay:sinkchanges" || k == "hubrelay:stats:s" || k == store.StateKey(testKeys(), "s") // of a resumed sink
		},
	)
}

// Two nodes fill one digest, which lists as many notifications as configured and counts the rest.
func TestDigest_TwoNodes(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	a, b := &fakeSink{answer: answers(nil)}, &fakeSink{answer: answers(nil)}
	nodes := []*Pipeline{e.pipeline(a, gathering(time.Hour, 20)), e.pipeline(b, gathering(time.Hour, 20))}
	for i := range 57 {
		topic := "container.error"
		if i%3 == 0 {
			topic = "billing.failed"
		}
		// The earliest one arrives neither first nor last.
		if err := handleDelivery(t.Context(), nodes[i%2], event((i+30)%57, topic, "h1")); err != nil {
			t.Fatal(err)
		}
	}
	if n := e.digestedCount(); n != 57 || a.attempts("")+b.attempts("") != 0 {
		t.Fatalf("%d in digests, %d attempts", n, a.attempts("")+b.attempts(""))
	}
	for _, p := range nodes {
		e.retries(p)
	}
	e.due()
	testkit.WaitFor(t, "delivered", func() bool { return a.attempts("")+b.attempts("") > 0 && e.scheduledCount() == 0 })
	got := append(a.deliveries(), b.deliveries()...)
	if len(got) != 1 {
		t.Fatalf("%d deliveries", len(got))
	}
	d := got[0]
	want := &relay.Digest{
		Count: 57, First: at(0), Last: at(56), Topics: map[string]int{"container.error": 38, "billing.failed": 19},
	}
	if !reflect.DeepEqual(d.Digest, want) || len(d.Notifications) != 20 || len(d.ID) != 24 || d.Attempt != 1 {
		t.Errorf("%+v with %d events, want %+v", d.Digest, len(d.Notifications), want)
	}
	for i, n := range d.Notifications {
		topic := "container.error"
		if i%3 == 0 {
			topic = "billing.failed"
		}
		if !reflect.DeepEqual(n, event(i+30, topic, "h1").Notifications[0]) {
			t.Errorf("event %d: %+v", i, n)
		}
	}
	if keys := e.left(); len(keys) != 0 {
		t.Errorf("left in Redis: %v", keys)
	}
}

// Concurrently added notifications are listed in the order of the log.
func TestDigest_ListsInOrder(t *testing.T) {
	t.Parallel()
	r := &store.Record{Digest: &relay.Digest{Count: 5}}
	for _, cursor := range []string{"5-10", "12-0", "5-2", "", "5-2"} {
		r.Notifications = append(
			r.Notifications,
			store.Notification{ID: fmt.Sprint(len(r.Notifications)), Cursor: cursor},
		)
	}
	got := ""
	for _, n := range r.NextDelivery("d").Notifications {
		got += n.ID
	}
	if got != "32401" {
		t.Errorf("listed as %s", got)
	}
}

func TestDigestGroup(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	sink := &fakeSink{answer: answers(nil)}
	p := e.pipeline(sink, gathering(time.Hour, 20, ByTopic, ByHub, ByCluster, ByAccount))
	events := []relay.Delivery{
		event(0, "a.b", "h1", "y", "x"),
		event(1, "a.b", "h1", "x", "y", "x"), // the same clusters
		event(2, "a.b", "h1", "x"),
		event(3, "a.b", "h2", "x"),
		event(4, "a.c", "h1", "x"),
		event(5, "a.c", "h1"),
		event(6, "a.c", "h1"),
	}
	events[6].Notifications[0].Account = "acme"
	for _, d := range events {
		if err := handleDelivery(t.Context(), p, d); err != nil {
			t.Fatal(err)
		}
	}
	e.retries(p)
	e.due()
	testkit.WaitFor(t, "all delivered", func() bool { return len(sink.deliveries()) == 6 && e.scheduledCount() == 0 })
	got := map[string]int{}
	for _, d := range sink.deliveries() {
		got[fmt.Sprint(d.Digest.Shared)] = d.Digest.Count
	}
	want := map[string]int{
		"map[account:a1 cluster:x, y hub:h1 topic:a.b]": 2, "map[account:a1 cluster:x hub:h1 topic:a.b]": 1,
		"map[account:a1 cluster:x hub:h2 topic:a.b]": 1,
		"map[account:a1 cluster:x hub:h1 topic:a.c]": 1, "map[account:a1 hub:h1 topic:a.c]": 1,
		"map[account:acme hub:h1 topic:a.c]": 1,
	}
	if !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// After a kill before the ack, the queue delivers a notification again. The digest counts it once.
func TestDigest_CountsOnce(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	p := e.pipeline(&fakeSink{answer: answers(nil)}, gathering(time.Hour, 2))
	other := e.pipeline(&fakeSink{answer: answers(nil)}, gathering(time.Hour, 2))
	for _, node := range []*Pipeline{p, other, p} {
		for i := range 5 {
			if err := handleDelivery(t.Context(), node, event(i, "a.b", "h1")); err != nil {
				t.Fatal(err)
			}
		}
	}
	if n := e.digestedCount(); n != 5 {
		t.Errorf("%d in digests, want 5", n)
	}
}

// A digest remembers a limited number of IDs, which are the last ones.
func TestDigest_RemembersLastIDs(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	ctx := t.Context()
	put := func(i int) {
		t.Helper()
		n := event(i, "a.b", "h1").Notifications[0]
		entry := store.DigestEntry{Notification: n, Group: "k", MaxListed: 1, Wait: time.Hour, ArrivedAt: n.StoredAt()}
		if added, err := e.store.Digests.Add(ctx, "s", entry); err != nil || !added.Done {
			t.Fatal(added, err)
		}
	}
	for i := range digestDedupSize + 10 {
		put(i)
	}
	for i := digestDedupSize; i < digestDedupSize+10; i++ {
		put(i)
	}
	put(11)
	if n := e.digestedCount(); n != digestDedupSize+10 {
		t.Errorf("%d counted", n)
	}
	put(0) // no longer remembered
	if n := e.digestedCount(); n != digestDedupSize+11 {
		t.Errorf("%d counted", n)
	}
	if n := e.client.HLen(ctx, "hubrelay:digest:s:k").Val(); n > 2*digestDedupSize+20 {
		t.Errorf("%d fields", n)
	}
}

func TestDigest_MaxBytes(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	sink := &fakeSink{answer: answers(nil)}
	p := e.pipeline(sink, gathering(time.Hour, 1000))
	big := strings.Repeat("x", 250<<10)
	for i := range 20 {
		d := event(i, "a.b", "h1")
		d.Notifications[0].Data = fmt.Appendf(nil, `{"context":{},"s":%q}`, big)
		if err := handleDelivery(t.Context(), p, d); err != nil {
			t.Fatal(err)
		}
	}
	e.retries(p)
	e.due()
	testkit.WaitForValue(t, "delivered", 1, func() int { return len(sink.deliveries()) })
	if d := sink.deliveries()[0]; d.Digest.Count != 20 || len(d.Notifications) < 10 || len(d.Notifications) > 16 {
		t.Errorf("%d of %d listed", len(d.Notifications), d.Digest.Count)
	}
}

// An open digest with a longer wait is sealed earlier after the next notification.
func TestDigest_ShorterWait(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	sink := &fakeSink{answer: answers(nil)}
	if err := handleDelivery(t.Context(), e.pipeline(sink, gathering(time.Hour, 20)), event(0, "a.b", "h1")); err != nil {
		t.Fatal(err)
	}
	p := e.pipeline(sink, gathering(100*time.Millisecond, 20))
	e.retries(p)
	if err := handleDelivery(t.Context(), p, event(1, "a.b", "h1")); err != nil {
		t.Fatal(err)
	}
	testkit.WaitForValue(t, "delivered", 1, func() int { return len(sink.deliveries()) })
	if d := sink.deliveries()[0]; d.Digest == nil || d.Digest.Count != 2 {
		t.Errorf("%+v", d.Digest)
	}
}

// Digests that are open when the wait is shortened, or digests are disabled, do not keep their time.
func TestDigest_ReloadShortensOpenDigests(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*Options){
		"shorter": gathering(100*time.Millisecond, 20),
		"none":    func(*Options) {},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := newEnv(t)
			sink := &fakeSink{answer: answers(nil)}
			p := e.pipeline(sink, gathering(24*time.Hour, 20))
			for i := range 2 {
				if err := handleDelivery(t.Context(), p, event(i, "a.b", "h1")); err != nil {
					t.Fatal(err)
				}
			}
			e.retries(e.pipeline(sink, change))
			testkit.WaitForValue(t, "delivered", 1, func() int { return len(sink.deliveries()) })
			if d := sink.deliveries()[0]; d.Digest == nil || d.Digest.Count != 2 {
				t.Errorf("%+v", d.Digest)
			}
		})
	}
}

// A node that has not reloaded yet opens digests with the old wait. It may stop before they are due.
func TestDigest_ShortensDigestsOfOtherNodes(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	sink := &fakeSink{answer: answers(nil)}
	p, old := e.pipeline(sink, gathering(time.Minute, 20)), e.pipeline(sink, gathering(24*time.Hour, 20))
	poll := func() {
		t.Helper()
		request := p.Poll(true, true)
		if err := p.Apply(t.Context(), e.store.Retries.Poll(t.Context(), []store.PollRequest{request})[0]); err != nil {
			t.Fatal(err)
		}
	}
	poll()
	if err := handleDelivery(t.Context(), old, event(0, "a.b", "h1")); err != nil {
		t.Fatal(err)
	}
	poll()
	open, err := e.store.Digests.List(t.Context(), "s", 0, 10)
	if err != nil || len(open) != 1 || time.Until(open[0].SealAt) > time.Hour {
		t.Errorf("got open digests %+v, %v, want one that is due in a minute", open, err)
	}
}

// The number of open digests is limited by the backlog. Further notifications are delivered alone.
func TestDigest_LimitedByBacklog(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	sink := &fakeSink{answer: answers(nil)}
	p := e.pipeline(sink, func(o *Options) { gathering(time.Hour, 20, ByHub)(o); o.Backlog = 2 })
	for i := range 6 {
		if err := handleDelivery(t.Context(), p, event(i, "a.b", fmt.Sprint("h", i%3))); err != nil {
			t.Fatal(err)
		}
	}
	if n := e.digestedCount(); n != 4 || sink.attempts("") != 2 {
		t.Errorf("%d in digests, %d sent alone", n, sink.attempts(""))
	}
	if d := sink.deliveries()[0].Digest; d == nil || d.Count != 1 || d.Topics["a.b"] != 1 || d.Shared[ByHub] != "h2" {
		t.Errorf("sent alone: got %+v, want a digest of one", d)
	}
}

// The notifications in all open digests together are limited. Open digests only count further ones, and others are delivered alone.
func TestDigest_LimitsBytesOfAllDigests(t *testing.T) {
	t.Parallel()
	for name, limit := range map[string]func(*Options){
		"backlog_bytes": func(o *Options) { o.BacklogBytes = 1 << 20 },
		"part of redis": func(o *Options) { o.DigestBytes = func() int64 { return 1 << 20 } },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := newEnv(t)
			sink := &fakeSink{answer: answers(nil)}
			p := e.pipeline(sink, func(o *Options) { gathering(time.Hour, 20, ByHub)(o); limit(o) })
			const hubs = 20
			for i := range 2 * hubs {
				d := event(i, "a.b", fmt.Sprint("h", i%hubs))
				d.Notifications[0].Data = fmt.Appendf(nil, `{"context":{},"s":%q}`, strings.Repeat("x", 100_000))
				if err := handleDelivery(t.Context(), p, d); err != nil {
					t.Fatal(err)
				}
			}
			const open = 11 // the last one exceeds the limit
			if n := e.digestedCount(); n != 2*open || sink.attempts("") != 2*(hubs-open) {
				t.Errorf("%d in digests, %d sent alone", n, sink.attempts(""))
			}
			e.retries(p)
			e.due()
			testkit.WaitForValue(t, "the digests to be delivered", 2*(hubs-open)+open, func() int { return len(sink.deliveries()) })
			for _, d := range sink.deliveries()[2*(hubs-open):] {
				if d.Digest.Count != 2 || len(d.Notifications) != 1 {
					t.Errorf("got a digest of %d that lists %d, want 2 and 1", d.Digest.Count, len(d.Notifications))
				}
			}
			testkit.WaitFor(t, "nothing to be left in Redis", func() bool { return len(e.left()) == 0 })
		})
	}
}

// The IDs that a digest remembers need memory, too. At the limit, it only counts.
func TestDigest_LimitsMemoryOfIDs(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	p := e.pipeline(&fakeSink{answer: answers(nil)}, func(o *Options) { gathering(time.Hour, 1)(o); o.BacklogBytes = 64 << 10 })
	const count = 1000
	for i := range count {
		if err := handleDelivery(t.Context(), p, event(i, "a.b", "h1")); err != nil {
			t.Fatal(err)
		}
	}
	used := func() int64 {
		n, err := e.client.Get(t.Context(), "hubrelay:digestbytes:s").Int64()
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	before := used()
	if n := e.digestedCount(); n != count || before < 64<<10 || before > 66<<10 {
		t.Errorf("got %d in the digest with %d bytes", n, before)
	}
	for i := range 10 { // each topic has its own count
		if err := handleDelivery(t.Context(), p, event(count+i, fmt.Sprint("topic.", i), "h1")); err != nil {
			t.Fatal(err)
		}
	}
	if grown := used() - before; grown < 500 {
		t.Errorf("ten more topics count as %d bytes", grown)
	}
	for _, key := range e.client.Keys(t.Context(), "hubrelay:digest:s:*").Val() {
		if fields := e.client.HLen(t.Context(), key).Val(); fields > 800 {
			t.Errorf("the digest has %d fields, want about two for each of 300 IDs", fields)
		}
	}
}

// A shared value of any length is cut, but groups stay apart.
func TestDigestGroup_LimitsSharedValues(t *testing.T) {
	t.Parallel()
	group := func(last string) (string, string) {
		clusters := []string{"z" + last}
		for i := range 20 {
			clusters = append(clusters, strings.Repeat("c", 200)+fmt.Sprint(i))
		}
		shared, name := digestGroup(event(0, "a.b", "h1", clusters...).Notifications[0], []string{ByCluster})
		return shared[ByCluster], name
	}
	value, one := group("1")
	_, other := group("2")
	if len(value) < maxSharedValue || len(value) > maxSharedValue+len("…") || one == other {
		t.Errorf("got a value of %d bytes and the groups %s, %s", len(value), one, other)
	}
}

// A sealed digest is the same in every attempt, as a dead letter, and after its replay.
func TestDigest_SealedIsUnchanged(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	sink := &fakeSink{answer: answers(errFar, errFar, errFar, errFar, nil)}
	p := e.pipeline(sink, func(o *Options) {
		gathering(time.Hour, 2, ByAccount)(o)
		o.Schedule.MaxAttempts = 4
	})
	for i := range 3 {
		if err := handleDelivery(t.Context(), p, event(i, "a.b", "h1")); err != nil {
			t.Fatal(err)
		}
	}
	e.retries(p)
	e.due()
	testkit.WaitForValue(t, "a dead letter", 1, func() int { return len(e.deadLetters()) })
	first := sink.deliveries()[0]
	c, err := e.store.DeadLetters.Get(t.Context(), "s", first.ID)
	if err != nil || !reflect.DeepEqual(c.Digest, first.Digest) || !sameContent(c.Notifications, first.Notifications) {
		t.Errorf("%+v, %v", c, err)
	}
	// Later notifications belong to another digest.
	if err := handleDelivery(t.Context(), p, event(7, "a.b", "h1")); err != nil {
		t.Fatal(err)
	}
	if got, err := e.replayDeadLetters(store.ReplayOptions{}, first.ID); err != nil ||
		got.Done != 1 {
		t.Fatalf("%+v, %v", got, err)
	}
	testkit.WaitFor(t, "delivered", func() bool { return sink.attempts("") == 5 && e.scheduledCount() == 0 })
	for i, d := range sink.deliveries() {
		if d.ID != first.ID || !reflect.DeepEqual(d.Digest, first.Digest) ||
			!sameContent(d.Notifications, first.Notifications) {
			t.Errorf("attempt %d: %+v", i+1, d)
		}
	}
	if first.Digest.Count != 3 || len(first.Notifications) != 2 || first.Digest.Shared["account"] != "a1" {
		t.Errorf("%+v", first.Digest)
	}
}

func sameContent(a, b []relay.Notification) bool {
	return slices.EqualFunc(a, b, func(x, y relay.Notification) bool { return reflect.DeepEqual(x, y) })
}

// A single notification is delivered as a digest too, also as a dead letter.
func TestDigest_OneNotification(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	sink := &fakeSink{answer: answers(relay.Permanent(errFar), nil)}
	p := e.pipeline(sink, gathering(time.Millisecond, 20))
	e.retries(p)
	if err := handleDelivery(t.Context(), p, event(0, "a.b", "h1")); err != nil {
		t.Fatal(err)
	}
	testkit.WaitForValue(t, "a dead letter", 1, func() int { return len(e.deadLetters()) })
	id := sink.deliveries()[0].ID
	if got, err := e.replayDeadLetters(store.ReplayOptions{}, id); err != nil ||
		got.Done != 1 {
		t.Fatalf("%+v, %v", got, err)
	}
	testkit.WaitForValue(t, "delivered", 2, func() int { return sink.attempts(id) })
	for _, d := range sink.deliveries() {
		if d.Digest == nil || d.Digest.Count != 1 || !d.Digest.First.Equal(at(0)) || len(d.Notifications) != 1 {
			t.Errorf("%+v", d.Digest)
		}
	}
}

func TestForget_Digests(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	p := e.pipeline(&fakeSink{answer: answers(nil)}, gathering(time.Hour, 20, ByHub))
	for i := range 4 {
		if err := handleDelivery(t.Context(), p, event(i, "a.b", fmt.Sprint("h", i))); err != nil {
			t.Fatal(err)
		}
	}
	if known, err := e.store.Stats.HasData(t.Context(), "s"); err != nil || !known {
		t.Errorf("not remembered, %v", err)
	}
	if err := e.store.Forget(t.Context(), "s", false); err != nil {
		t.Fatal(err)
	}
	if keys := e.left(); len(keys) != 0 {
		t.Errorf("left in Redis: %v", keys)
	}
	if known, err := e.store.Stats.HasData(t.Context(), "s"); err != nil || known {
		t.Errorf("remembered, %v", err)
	}
}

// The digest of a killed node is sealed by another node.
func TestDigest_SealedByOtherNode(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	gone := e.pipeline(&fakeSink{answer: answers(nil)}, gathering(10*time.Millisecond, 20))
	if err := handleDelivery(t.Context(), gone, event(0, "a.b", "h1")); err != nil {
		t.Fatal(err)
	}
	sink := &fakeSink{answer: answers(nil)}
	e.retries(e.pipeline(sink, nil)) // it has no digests
	testkit.WaitFor(t, "delivered", func() bool { return len(sink.deliveries()) == 1 && len(e.left()) == 0 })
	if d := sink.deliveries()[0]; d.Digest == nil || d.Digest.Count != 1 {
		t.Errorf("%+v", d)
	}
}

// A rejected digest is split until only the rejected notifications are dead letters. All others are delivered. Those that are only
// counted are shared among the listed ones.
func TestDigest_RejectedNotificationsAreIsolated(t *testing.T) {
	t.Parallel()
	const listed, all = 10, 50
	for _, index := range []int{0, 3, listed - 1} {
		e := newEnv(t)
		rejected := event(index, "a.b", "h1").Notifications[0].ID
		sink := &fakeSink{answer: func(_ context.Context, d relay.Delivery) error {
			for _, n := range d.Notifications {
				if n.ID == rejected {
					return relay.Permanent(&relay.ResponseError{Status: 422})
				}
			}
			return nil
		}}
		p := e.pipeline(sink, gathering(time.Hour, listed))
		e.sealDigest(p, all)
		testkit.WaitFor(t, "the rejected one is dead, the others are delivered", func() bool {
			return len(e.deadLetters()) == 1 && e.scheduledCount() == 0
		})
		delivered, dead := 0, 0
		for _, d := range sink.deliveries() {
			if d.Digest.Topics["a.b"] != d.Digest.Count {
				t.Errorf("got %+v, want the topics of %d events", d.Digest, d.Digest.Count)
			}
			switch isRejected := slices.ContainsFunc(d.Notifications, func(n relay.Notification) bool { return n.ID == rejected }); {
			case !isRejected:
				delivered += d.Digest.Count
			case len(d.Notifications) == 1:
				dead = d.Digest.Count
			}
		}
		if delivered != all-1 || dead != 1 {
			t.Errorf("event %d: %d events are in delivered digests, and %d in the dead letter, want %d and 1", index, delivered, dead, all-1)
		}
	}
}

// A destination that rejects all events that a digest lists gets a stand-in for the others, which may belong to other accounts.
func TestDigest_UnlistedEventsGetStandIn(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		failure     error
		deadLetters int
	}{
		"permanent": {relay.Permanent(&relay.ResponseError{Status: 422}), 2},
		"temporary": {&relay.ResponseError{Status: 404}, 1},
	} {
		e := newEnv(t)
		const listed, all = 2, 5
		sink := &fakeSink{answer: func(_ context.Context, d relay.Delivery) error {
			if !strings.Contains(string(d.Notifications[0].Data), "unlisted") {
				return tt.failure
			}
			return nil
		}}
		p := e.pipeline(sink, gathering(time.Hour, listed))
		e.sealDigest(p, all)
		delivered := func() (n int) {
			for _, d := range sink.deliveries() {
				if strings.Contains(string(d.Notifications[0].Data), "unlisted") {
					n = d.Digest.Count
				}
			}
			return n
		}
		testkit.WaitFor(t, name+": the listed ones are dead, the others are delivered", func() bool {
			return len(e.deadLetters()) == tt.deadLetters && e.scheduledCount() == 0
		})
		if n := delivered(); n != all-listed {
			t.Errorf("%s: got a stand-in for %d events, want %d", name, n, all-listed)
		}
	}
}

// A rejected stand-in is not split again, also after a replay of its dead letter.
func TestDigest_StandInIsNotSplit(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	sink := &fakeSink{answer: func(context.Context, relay.Delivery) error {
		return relay.Permanent(&relay.ResponseError{Status: 422})
	}}
	p := e.pipeline(sink, gathering(time.Hour, 1))
	e.sealDigest(p, 5)
	for attempts := 3; attempts <= 5; attempts += 2 { // the digest, then both dead letters twice
		testkit.WaitFor(t, "two dead letters", func() bool {
			return sink.attempts("") >= attempts && len(e.deadLetters()) == 2 && e.scheduledCount() == 0
		})
		if n := sink.attempts(""); n != attempts {
			t.Errorf("got %d attempts, want %d", n, attempts)
		}
		if got, err := e.replayAllDeadLetters(store.ReplayOptions{}); err != nil || got.Done != 2 {
			t.Fatalf("got %+v, %v", got, err)
		}
	}
}

// A digest that counts events it does not list is not the delivery of one account, so it is not postponed with the failing account
// that fills its list. Neither is its stand-in.
func TestAccountOf_Digest(t *testing.T) {
	t.Parallel()
	n := event(0, "a.b", "h1")
	for name, tt := range map[string]struct {
		count  int
		shared map[string]string
		want   admission.Account
	}{
		"all are listed": {1, nil, admission.NewAccount("a1")},
		"of one account": {3, map[string]string{"account": "a1"}, admission.NewAccount("a1")},
		"others":         {3, nil, admission.Account{}},
	} {
		n.Digest = &relay.Digest{Count: tt.count, Topics: map[string]int{"a.b": tt.count}, Shared: tt.shared}
		it := &Item{Delivery: n, Record: store.NewRecord(n, time.Now())}
		if got := accountOf(it); got != tt.want {
			t.Errorf("%s: got %+v, want %+v", name, got, tt.want)
		}
		if tt.want != (admission.Account{}) {
			continue
		}
		parts := it.Record.SplitByAccount()
		if got := accountOf(&Item{Delivery: parts[1].NextDelivery("id"), Record: parts[1]}); got != tt.want {
			t.Errorf("the stand-in: got %+v, want %+v", got, tt.want)
		}
	}
}
