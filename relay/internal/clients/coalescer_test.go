package clients

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hubrelay/hubrelay/relay"
)

// emitted is one batch from a coalescer: the topics, and the time since the start.
type emitted struct {
	at     time.Duration
	topics []string
}

// runCoalescer runs play with a fake clock and returns what the coalescer emitted.
func runCoalescer(t *testing.T, wait time.Duration, play func(*coalescer, func(...string))) []emitted {
	t.Helper()
	var got []emitted
	synctest.Test(t, func(*testing.T) {
		began := time.Now()
		g := newCoalescer(wait, func(b Batch) {
			one := emitted{at: time.Since(began)}
			for i := range b.Notifications {
				one.topics = append(one.topics, b.Notifications[i].Topic)
			}
			if b.Gap {
				one.topics = append(one.topics, "gap")
			}
			if b.Partition != 3 {
				t.Errorf("partition %d", b.Partition)
			}
			got = append(got, one)
		})
		play(g, func(topics ...string) {
			var list []relay.Notification
			for _, topic := range topics {
				list = append(list, relay.Notification{Topic: topic, Data: make([]byte, len(topic))})
			}
			g.add(Batch{Partition: 3, Notifications: list})
		})
		g.flushNow()
		g.flushNow()
	})
	return got
}

func TestCoalescer(t *testing.T) {
	t.Parallel()
	const ms = time.Millisecond
	got := runCoalescer(t, 20*ms, func(_ *coalescer, send func(...string)) {
		send("alone") // at once
		time.Sleep(5 * ms)
		send("a", "b")
		time.Sleep(5 * ms)
		send("c") // both with the end of the first's 20 ms
		time.Sleep(12 * ms)
		send("d") // at 22: waits for 40
		time.Sleep(100 * ms)
		send("late") // at once
		send("held") // until flushNow
	})
	want := []emitted{
		{0, []string{"alone"}},
		{20 * ms, []string{"a", "b", "c"}},
		{40 * ms, []string{"d"}},
		{122 * ms, []string{"late"}},
		{122 * ms, []string{"held"}},
	}
	isEqual := func(a, b emitted) bool { return a.at == b.at && slices.Equal(a.topics, b.topics) }
	if !slices.EqualFunc(got, want, isEqual) {
		t.Errorf("got %v\nwant %v", got, want)
	}
}

func TestCoalescer_DoesNotDelayBursts(t *testing.T) {
	t.Parallel()
	big := string(make([]byte, burstBytes))
	for wait, want := range map[time.Duration][]int{0: {1, 1, 1}, 50 * time.Millisecond: {1, 2}} {
		var sizes []int
		for _, one := range runCoalescer(t, wait, func(_ *coalescer, send func(...string)) {
			send("first")
			send("second")
			send(big)
		}) {
			if one.at != 0 {
				t.Errorf("wait %s: %d came after %s", wait, len(one.topics), one.at)
			}
			sizes = append(sizes, len(one.topics))
		}
		if !slices.Equal(sizes, want) {
			t.Errorf("wait %s: emitted %v, want %v", wait, sizes, want)
		}
	}
}

func TestCoalescer_KeepsGapsInOrder(t *testing.T) {
	t.Parallel()
	got := runCoalescer(t, 20*time.Millisecond, func(g *coalescer, send func(...string)) {
		send("first")
		send("held")
		g.add(Batch{Partition: 3, Gap: true})
		send("later")
	})
	var topics []string
	for _, one := range got {
		topics = append(topics, one.topics...)
	}
	if want := []string{"first", "held", "gap", "later"}; !slices.Equal(topics, want) {
		t.Errorf("emitted %v, want %v", topics, want)
	}
}

func TestCoalescer_LeavesCallerSliceUnchanged(t *testing.T) {
	t.Parallel()
	list := []relay.Notification{{Topic: "a"}, {Topic: "b"}, {Topic: "unchanged"}}
	got := runCoalescer(t, 20*time.Millisecond, func(g *coalescer, send func(...string)) {
		send("first")
		g.add(Batch{Partition: 3, Notifications: list[:2]})
		send("c")
	})
	if list[2].Topic != "unchanged" || len(got) != 2 || !slices.Equal(got[1].topics, []string{"a", "b", "c"}) {
		t.Errorf("%v, %v", list, got)
	}
}
