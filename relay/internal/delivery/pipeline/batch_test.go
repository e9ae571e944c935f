package pipeline

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/delivery/admission"
	"github.com/hubrelay/hubrelay/relay/internal/delivery/store"
	"github.com/hubrelay/hubrelay/relay/internal/replay"
)

func batching(wait time.Duration, most int) func(*Options) {
	return func(o *Options) { o.Batch = Batch{Wait: wait, Max: most} }
}

// bring handles n events concurrently, numbered from first, and returns when all were handled.
func bring(t *testing.T, p *Pipeline, from, n int) *sync.WaitGroup {
	t.Helper()
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			if err := handleDelivery(t.Context(), p, event(from+i, "a.b", "h1")); err != nil {
				t.Errorf("%d: %v", from+i, err)
			}
		})
	}
	return &wg
}

// brought returns the numbers of all delivered notifications, sorted. It reports an error if a delivery is not sorted.
func brought(t *testing.T, list []relay.Delivery) []int {
	t.Helper()
	var all []int
	for _, d := range list {
		var numbers []int
		for _, n := range d.Notifications {
			var second, i int
			if _, err := fmt.Sscanf(n.ID, "%8x%16x", &second, &i); err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(n, event(i, "a.b", "h1").Notifications[0]) {
				t.Errorf("event %d: %+v", i, n)
			}
			numbers = append(numbers, i)
		}
		if !slices.IsSorted(numbers) || !d.Batch || d.Digest != nil {
			t.Errorf("delivery %s (batch: %v, digest: %v) holds %v", d.ID, d.Batch, d.Digest, numbers)
		}
		all = append(all, numbers...)
	}
	slices.Sort(all)
	return all
}

func upTo(n int) []int {
	list := make([]int, n)
	for i := range list {
		list[i] = i
	}
	return list
}

// emptied are the keys of a sink that has delivered batches.
var emptied = []string{"hubrelay:batchids:s", "hubrelay:batchlog:s"}

func (e *env) waitEmptied() {
	e.t.Helper()
	testkit.WaitFor(e.t, "nothing but the memory of batches, and of dead letters, is left", func() bool {
		keys := slices.DeleteFunc(e.left(), func(k string) bool { return strings.HasPrefix(k, "hubrelay:dead") })
		slices.Sort(keys)
		return slices.Equal(keys, emptied)
	})
}

// A full batch is sealed at once, and further notifications start the next one. None is lost.
func TestBatch_SealedWhenFull(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	sink, obs := &fakeSink{answer: answers(nil)}, &counting{}
	p := e.pipeline(sink, func(o *Options) {
		o.Batch, o.Observer = Batch{Wait: time.Hour, Max: 20}, obs
	})
	e.retries(p)
	bring(t, p, 0, 60).Wait()
	got := sink.deliveries()
	if all := brought(t, got); len(got) != 3 || !slices.Equal(all, upTo(60)) {
		t.Errorf("%d deliveries with %v", len(got), all)
	}
	for _, d := range got {
		if len(d.Notifications) != 20 || len(d.ID) != 24 || d.Attempt != 1 || d.ID == d.Notifications[0].ID {
			t.Errorf("%s, attempt %d, holds %d", d.ID, d.Attempt, len(d.Notifications))
		}
	}
	if n := obs.get("batched"); n != 60 {
		t.Errorf("%d were counted", n)
	}
	e.waitEmptied()
	e.client.Del(t.Context(), "hubrelay:batchids:s")
	if err := e.store.Forget(t.Context(), "s", true); err != nil || len(e.left()) != 0 {
		t.Errorf("%v, left %v", err, e.left())
	}
}

func TestBatch_SealedAfterWait(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	sink := &fakeSink{answer: answers(nil)}
	p := e.pipeline(sink, batching(50*time.Millisecond, 20))
	bring(t, p, 0, 7).Wait()
	if all := brought(t, sink.deliveries()); !slices.Equal(all, upTo(7)) {
		t.Error(all)
	}
}

// A batch contains at most 4 MiB, even if Max allows more notifications.
func TestBatch_MaxBytes(t *testing.T) {
	t.Parallel()
	b := &batchCollector{max: 1000}
	big := relay.Notification{Data: make([]byte, 256<<10)}
	first, _, lead := b.add(big, "")
	for i := range 15 {
		if other, _, again := b.add(big, ""); other != first || again || !lead {
			t.Fatalf("event %d is in another batch", i)
		}
	}
	next, place, lead := b.add(big, "")
	if next == first || place != 0 || !lead {
		t.Error("the batch is not full")
	}
	select {
	case <-first.full:
	default:
		t.Error("full is not closed")
	}
}

// A failed batch is retried unchanged by any node, and a replay of its dead letter contains the same.
func TestBatch_RetriedUnchanged(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	sink := &fakeSink{answer: answers(errFar, errFar, errFar, nil)}
	twice := Schedule{Delays: []time.Duration{time.Millisecond, time.Millisecond}, MaxAge: time.Hour}
	// It supports batches, but its configuration has none.
	e.retries(e.pipeline(sink, func(o *Options) { o.Schedule = twice }))
	p := e.pipeline(sink, batching(time.Hour, 10))
	bring(t, p, 0, 10).Wait()
	testkit.WaitForValue(t, "it is dead", 1, func() int { return len(e.deadLetters()) })
	got := sink.deliveries()
	letter, err := e.store.DeadLetters.Get(t.Context(), "s", got[0].ID)
	if err != nil || !letter.Batch || len(letter.Notifications) != 10 || len(letter.History) != 3 {
		t.Errorf("%+v, %v", letter, err)
	}
	if c, err := e.replayAllDeadLetters(store.ReplayOptions{}); err != nil ||
		c.Done != 1 {
		t.Fatal(c, err)
	}
	e.waitEmptied()
	got = sink.deliveries()
	if len(got) != 4 {
		t.Fatalf("%d attempts", len(got))
	}
	for i, d := range got {
		if d.ID != got[0].ID || !slices.Equal(brought(t, []relay.Delivery{d}), upTo(10)) || i < 3 && d.Attempt != i+1 {
			t.Errorf("attempt %d: %s is number %d", i+1, d.ID, d.Attempt)
		}
	}
}

// Batches of the same notifications have the same ID, so receivers detect a replay. Others have other IDs.
func TestBatch_IDOfContent(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	sink := &fakeSink{answer: answers(nil)}
	p := e.pipeline(sink, batching(time.Hour, 10))
	bring(t, p, 0, 10).Wait()
	bring(t, p, 10, 10).Wait()
	e.client.Del(t.Context(), emptied...) // otherwise fresh deliveries are duplicates
	bring(t, p, 0, 10).Wait()
	var ids []string
	for _, d := range sink.deliveries() {
		ids = append(ids, d.ID)
	}
	if len(ids) != 3 || ids[0] != ids[2] || ids[0] == ids[1] {
		t.Errorf("the batches have the IDs %v", ids)
	}
}

// A rejected batch is split until only the notifications that the destination rejects become dead letters.
func TestBatch_RejectedNotificationsAreIsolated(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	rejected := []string{event(3, "a.b", "h1").Notifications[0].ID, event(7, "a.b", "h1").Notifications[0].ID}
	sink := &fakeSink{answer: func(_ context.Context, d relay.Delivery) error {
		if !d.Batch {
			t.Errorf("%s is not a batch", d.ID)
		}
		for _, n := range d.Notifications {
			if slices.Contains(rejected, n.ID) {
				return relay.Permanent(&relay.ResponseError{Status: 422})
			}
		}
		return nil
	}}
	p := e.pipeline(sink, batching(time.Hour, 10))
	e.retries(p)
	bring(t, p, 0, 10).Wait()
	testkit.WaitForValue(t, "the rejected ones are dead", 2, func() int { return len(e.deadLetters()) })
	e.waitEmptied()
	var delivered []relay.Delivery
	for _, d := range sink.deliveries() {
		if !slices.ContainsFunc(d.Notifications, func(n relay.Notification) bool { return slices.Contains(rejected, n.ID) }) {
			delivered = append(delivered, d)
		}
	}
	got := brought(t, delivered)
	slices.Sort(got)
	if want := []int{0, 1, 2, 4, 5, 6, 8, 9}; !slices.Equal(got, want) {
		t.Errorf("got %v delivered, want %v", got, want)
	}
	if n := len(sink.deliveries()); n > 19 {
		t.Errorf("got %d attempts for 10 events, want at most 19", n)
	}
}

// The notifications of each account get separate attempts, because one account may be the reason for the failures: after the
// second attempt if the destination responds, and after the last one if it seems to be down.
func TestBatch_FailedIsSplitByAccount(t *testing.T) {
	t.Parallel()
	for status, wholeAttempts := range map[int]int{403: 2, 500: 4} {
		t.Run(strconv.Itoa(status), func(t *testing.T) {
			t.Parallel()
			testSplitByAccount(t, status, wholeAttempts)
		})
	}
}

// testSplitByAccount has a destination that responds with a status to one account. The whole batch gets a number of attempts.
func testSplitByAccount(t *testing.T, status, wholeAttempts int) {
	t.Helper()
	e := newEnv(t)
	sink := &fakeSink{answer: func(_ context.Context, d relay.Delivery) error {
		for _, n := range d.Notifications {
			if n.Account == "bad" {
				return &relay.ResponseError{Status: status}
			}
		}
		return nil
	}}
	p := e.pipeline(sink, func(o *Options) {
		o.Batch, o.Schedule = Batch{Wait: time.Hour, Max: 10}, Schedule{Delays: slices.Repeat([]time.Duration{time.Millisecond}, 3)}
	})
	e.retries(p)
	var wg sync.WaitGroup
	for i := range 10 {
		wg.Go(func() {
			d := event(i, "a.b", "h1")
			d.Notifications[0].Account = []string{"bad", "good", "other"}[i%3]
			if err := handleDelivery(t.Context(), p, d); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	testkit.WaitForValue(t, "the notifications of one account are dead", 1, func() int { return len(e.deadLetters()) })
	e.waitEmptied()
	var delivered []relay.Delivery
	attempts := sink.deliveries()
	for _, d := range attempts[wholeAttempts:] {
		if d.Attempt < wholeAttempts || accountOf(&Item{Delivery: d}) == (admission.Account{}) {
			t.Errorf("got attempt %d with %d notifications, want a later attempt with notifications of one account", d.Attempt,
				len(d.Notifications))
		}
		if d.Notifications[0].Account == "bad" {
			continue
		}
		for i := range d.Notifications {
			d.Notifications[i].Account = event(0, "a.b", "h1").Notifications[0].Account // as brought expects
		}
		delivered = append(delivered, d)
	}
	got := brought(t, delivered)
	slices.Sort(got)
	retries := 4 - wholeAttempts // of the notifications that fail
	if want := []int{1, 2, 4, 5, 7, 8}; !slices.Equal(got, want) || len(attempts) != wholeAttempts+3+retries {
		t.Errorf("got %v delivered with %d attempts, want %v with %d", got, len(attempts), want, wholeAttempts+3+retries)
	}
}

// With ByAccount, a batch has the notifications of one account.
func TestBatch_ByAccount(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	sink := &fakeSink{answer: answers(nil)}
	p := e.pipeline(sink, func(o *Options) { o.Batch = Batch{Wait: 50 * time.Millisecond, Max: 100, ByAccount: true} })
	var wg sync.WaitGroup
	for i := range 40 {
		wg.Go(func() {
			d := event(i, "a.b", "h1")
			d.Notifications[0].Account = fmt.Sprint("account-", i%4)
			if err := handleDelivery(t.Context(), p, d); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	total := 0
	for _, d := range sink.deliveries() {
		total += len(d.Notifications)
		for _, n := range d.Notifications {
			if n.Account != d.Notifications[0].Account {
				t.Errorf("got %s and %s in one batch", n.Account, d.Notifications[0].Account)
			}
		}
	}
	if total != 40 {
		t.Errorf("got %d events, want 40", total)
	}
}

// A notification whose ack was lost is in no second batch, but a replay of the log delivers it again.
func TestBatch_NoDuplicatesAfterLostAck(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	sink := &fakeSink{answer: answers(nil)}
	killed, p := e.pipeline(sink, batching(time.Hour, 10)), e.pipeline(sink, batching(50*time.Millisecond, 10))
	bring(t, killed, 0, 10).Wait()
	bring(t, p, 5, 10).Wait()
	bring(t, p, 0, 10).Wait()
	if all := brought(t, sink.deliveries()); !slices.Equal(all, upTo(15)) {
		t.Errorf("arrived %v", all)
	}
	e.retries(p)
	var list replayLog
	for i := range 10 {
		list = append(list, event(i, "a.b", "h1").Notifications[0])
	}
	done, err := e.replay(t.Context(), list, replay.Request{Sink: "s", Partitions: 1, After: replay.StartAt("0-0")})
	if err != nil || done.Scheduled != 10 {
		t.Fatal(done, err)
	}
	e.waitEmptied()
	got := sink.deliveries()
	if all := brought(t, got); len(all) != 25 {
		t.Errorf("arrived %v", all)
	}
	if len(got) > 6 {
		t.Errorf("%d deliveries: the replay was not batched", len(got))
	}
}

// Redis keeps a limited number of IDs.
func TestBatch_KeepsLimitedIDs(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	for i := range 12 {
		var items []store.BatchItem
		for j := range 1000 {
			items = append(items, store.BatchItem{
				Notification: relay.Notification{ID: fmt.Sprintf("n-%d-%d", i, j), Topic: "a", Data: []byte("{}")},
			})
		}
		for range 2 { // the reply may get lost
			if _, err := e.store.Batches.Seal(
				t.Context(), "s", fmt.Sprint("batch", i), items, time.Minute, time.Now()); err != nil {
				t.Fatal(err)
			}
		}
	}
	ids := e.client.HLen(t.Context(), "hubrelay:batchids:s").Val()
	if lists := e.client.LLen(t.Context(), "hubrelay:batchlog:s").Val(); ids != lists*1000 || ids > batchDedupSize ||
		ids < batchDedupSize-1000 {
		t.Errorf("%d ids of %d batches", ids, lists)
	}
	if n := e.scheduledCount(); n != 12 {
		t.Errorf("%d batches", n)
	}
}

// If the reply was lost, any node may claim the batch.
func TestBatch_SealRepeated(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	items := []store.BatchItem{{Notification: event(0, "a.b", "h1").Notifications[0]}}
	first, err := e.store.Batches.Seal(t.Context(), "s", "batch", items, time.Hour, time.Now())
	if err != nil || first.LeaseEnd == "" || first.IsRepeated || first.Depth != 1 {
		t.Fatal(first, err)
	}
	again, err := e.store.Batches.Seal(t.Context(), "s", "batch", items, time.Hour, time.Now())
	if err != nil || !again.IsRepeated || again.Depth != 1 {
		t.Fatal(again, err)
	}
	sink := &fakeSink{answer: answers(nil)}
	e.retries(e.pipeline(sink, batching(time.Hour, 10)))
	e.waitEmptied()
	want := store.BatchID([]relay.Notification{items[0].Notification})
	if got := sink.deliveries(); len(got) != 1 || got[0].ID != want || !got[0].Batch {
		t.Errorf("%+v", got)
	}
}

// A full Redis seals no batch. Each notification is delivered alone, as a batch of one.
func TestBatch_FullRedis(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	sink := &fakeSink{answer: answers(nil)}
	p := e.pipeline(sink, batching(20*time.Millisecond, 10))
	if err := e.client.ConfigSet(t.Context(), "maxmemory", "1").Err(); err != nil {
		t.Fatal(err)
	}
	bring(t, p, 0, 10).Wait()
	got := sink.deliveries()
	if all := brought(t, got); len(got) != 10 || !slices.Equal(all, upTo(10)) ||
		got[0].ID != got[0].Notifications[0].ID {
		t.Errorf("%d deliveries of %v", len(got), all)
	}
}

// While the destination fails, no batch is sealed, and more notifications are added. A canceled one leaves the batch.
func TestBatch_WaitsForDestination(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	sink := &fakeSink{answer: answers(nil)}
	p := e.pipeline(sink, func(o *Options) {
		batching(10*time.Millisecond, 10)(o)
		o.probeDelay = time.Hour
	})
	failDestination(t, p)
	all := bring(t, p, 0, 5)
	testkit.WaitForValue(t, "five wait", 5, func() int { return batchedWaiting(p) })
	ctx, cancel := context.WithCancel(t.Context())
	left := make(chan error, 1)
	go func() { left <- handleDelivery(ctx, p, event(99, "a.b", "h1")) }()
	testkit.WaitForValue(t, "another waits", 6, func() int { return batchedWaiting(p) })
	cancel()
	if err := <-left; !errors.Is(err, context.Canceled) {
		t.Errorf("Handle = %v", err)
	}
	if n := e.scheduledCount(); n != 0 || sink.attempts("") != 0 {
		t.Fatalf("%d were sealed", n)
	}
	p.ProbeNow()
	all.Wait()
	if got := sink.deliveries(); len(got) != 1 || !slices.Equal(brought(t, got), upTo(5)) {
		t.Errorf("%+v", got)
	}
}

// Stop releases notifications that are not sealed.
func TestBatch_ReleasedOnStop(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	sink := &fakeSink{answer: answers(nil)}
	p := e.pipeline(sink, batching(time.Hour, 10))
	var wg sync.WaitGroup
	for i := range 5 {
		wg.Go(func() {
			if err := handleDelivery(t.Context(), p, event(i, "a.b", "h1")); !errors.Is(err, context.Canceled) {
				t.Errorf("Handle = %v", err)
			}
		})
	}
	testkit.WaitForValue(t, "five wait", 5, func() int { return batchedWaiting(p) })
	p.Stop()
	wg.Wait()
	if len(sink.deliveries())+len(e.left()) != 0 {
		t.Errorf("%v, %v", sink.deliveries(), e.left())
	}
}

// A rate counts deliveries. While a batch waits for it, more notifications are added.
func TestBatch_Rate(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	sink := &fakeSink{answer: answers(nil)}
	p := e.pipeline(sink, func(o *Options) {
		o.Batch, o.Burst = Batch{Wait: 10 * time.Millisecond, Max: 50}, 1
		o.Rate = relay.Rate{Count: 1, Per: 10 * time.Second} // time for all to join the second batch
	})
	bring(t, p, 0, 1).Wait()
	bring(t, p, 1, 40).Wait()
	if got := sink.deliveries(); len(got) != 2 || !slices.Equal(brought(t, got), upTo(41)) {
		t.Errorf("%d deliveries", len(got))
	}
}

// A sink without support for batches gets a batch that was sealed earlier as a digest.
func TestBatch_UnsupportedBySink(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	before := e.pipeline(&fakeSink{answer: answers(errFar)}, batching(time.Hour, 3))
	bring(t, before, 0, 3).Wait()
	sink := &fakeSink{answer: answers(nil)}
	e.retries(e.pipeline(sink, func(o *Options) { o.BatchesUnsupported = true }))
	testkit.WaitForValue(t, "delivered", 1, func() int { return len(sink.deliveries()) })
	d := sink.deliveries()[0]
	if d.Batch || d.Digest == nil || d.Digest.Count != 3 || d.Digest.Topics["a.b"] != 3 || len(d.Notifications) != 3 ||
		d.Digest.First != at(0) {
		t.Errorf("%+v", d)
	}
}

// A test delivery is a batch of one with its own ID.
func TestSendTest_Batch(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	sink := &fakeSink{answer: answers(nil)}
	p := e.pipeline(sink, batching(time.Hour, 3))
	n := event(1, "a.b", "h1").Notifications[0]
	if a := p.SendTest(t.Context(), n); a.Outcome != "delivered" {
		t.Errorf("%+v", a)
	}
	if d := sink.deliveries()[0]; !d.Batch || d.ID == n.ID || len(d.ID) != 24 ||
		strings.TrimLeft(d.ID, "0123456789abcdef") != "" {
		t.Errorf("%+v", d)
	}
}

// batchedWaiting returns the number of notifications in batches that are not sealed.
func batchedWaiting(p *Pipeline) int {
	state, _ := p.chain.(*stateStage)
	batches, _ := state.next.(*batchStage)
	c := &batches.collector
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.waiting
}
