package hub

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hubrelay/hubrelay/relay"
)

// given is what a gatherer handed on: the notifications' topics, and when.
type given struct {
	at     time.Duration
	topics []string
}

// gathering runs play in a bubble of its own time.
func gathering(t *testing.T, wait time.Duration, play func(*Coalescer, func(...string))) []given {
	t.Helper()
	var got []given
	synctest.Test(t, func(*testing.T) {
		began := time.Now()
		g := NewCoalescer(wait, func(b Batch) {
			one := given{at: time.Since(began)}
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
			g.Broadcast(Batch{Partition: 3, Notifications: list})
		})
		g.Close()
		g.Close()
	})
	return got
}

func TestGatherer(t *testing.T) {
	t.Parallel()
	const ms = time.Millisecond
	got := gathering(t, 20*ms, func(_ *Coalescer, send func(...string)) {
		send("alone") // at once
		time.Sleep(5 * ms)
		send("a", "b")
		time.Sleep(5 * ms)
		send("c") // both with the end of the first's 20 ms
		time.Sleep(12 * ms)
		send("d") // at 22: waits for 40
		time.Sleep(100 * ms)
		send("late") // at once
		send("held") // until Close
	})
	want := []given{
		{0, []string{"alone"}},
		{20 * ms, []string{"a", "b", "c"}},
		{40 * ms, []string{"d"}},
		{122 * ms, []string{"late"}},
		{122 * ms, []string{"held"}},
	}
	if !slices.EqualFunc(got, want, func(a, b given) bool { return a.at == b.at && slices.Equal(a.topics, b.topics) }) {
		t.Errorf("got %v\nwant %v", got, want)
	}
}

// A burst waits for nothing, and gathering off hands everything on as it comes.
func TestGathererPassesOn(t *testing.T) {
	t.Parallel()
	big := string(make([]byte, burstBytes))
	for wait, want := range map[time.Duration][]int{0: {1, 1, 1}, 50 * time.Millisecond: {1, 2}} {
		var sizes []int
		for _, one := range gathering(t, wait, func(_ *Coalescer, send func(...string)) {
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
			t.Errorf("wait %s: handed on %v, want %v", wait, sizes, want)
		}
	}
}

// A gap stays between what came before it and what comes after.
func TestGathererKeepsGapsInOrder(t *testing.T) {
	t.Parallel()
	got := gathering(t, 20*time.Millisecond, func(g *Coalescer, send func(...string)) {
		send("first")
		send("held")
		g.Broadcast(Batch{Partition: 3, Gap: true})
		send("later")
	})
	var topics []string
	for _, one := range got {
		topics = append(topics, one.topics...)
	}
	if want := []string{"first", "held", "gap", "later"}; !slices.Equal(topics, want) {
		t.Errorf("handed on %v, want %v", topics, want)
	}
}

// What is held is never written behind: the caller's slice may go on.
func TestGathererLeavesTheCallersSliceAlone(t *testing.T) {
	t.Parallel()
	list := []relay.Notification{{Topic: "a"}, {Topic: "b"}, {Topic: "not yours"}}
	got := gathering(t, 20*time.Millisecond, func(g *Coalescer, send func(...string)) {
		send("first")
		g.Broadcast(Batch{Partition: 3, Notifications: list[:2]})
		send("c")
	})
	if list[2].Topic != "not yours" || len(got) != 2 || !slices.Equal(got[1].topics, []string{"a", "b", "c"}) {
		t.Errorf("%v, %v", list, got)
	}
}
