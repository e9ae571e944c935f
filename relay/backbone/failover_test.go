package backbone

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/backbone/redistest"
)

// traffic publishes numbered notifications of some hubs and follows all partitions.
type traffic struct {
	t     *testing.T
	tails []*recorder

	mu       sync.Mutex
	b        *Backbone
	accepted map[string]int
}

var trafficHubs = []string{"a", "b", "c", "d", "e", "f"}

// startTraffic publishes through b, and reads through another that has no part in it, until stop.
func startTraffic(ctx context.Context, t *testing.T, b, reads *Backbone) (tr *traffic, stop func()) {
	t.Helper()
	tr = &traffic{t: t, b: b, accepted: make(map[string]int)}
	var readers, writers sync.WaitGroup
	reading, endReading := context.WithCancel(ctx)
	for p := range reads.Keys().Partitions() {
		r := &recorder{}
		tr.tails = append(tr.tails, r)
		readers.Go(func() { _ = reads.Tail(reading, p, begin, r.add) })
	}
	writing, endWriting := context.WithCancel(ctx)
	for _, hub := range trafficHubs {
		writers.Go(func() { tr.publish(writing, hub) })
	}
	t.Cleanup(readers.Wait)
	t.Cleanup(endReading)
	return tr, func() {
		endWriting()
		writers.Wait()
	}
}

// publish repeats each with its key until it is accepted, and gives up none that was begun.
func (tr *traffic) publish(ctx context.Context, hub string) {
	for i := 1; relay.Pause(ctx, 2*time.Millisecond); i++ {
		a := Append{Hub: hub, Key: hub + strconv.Itoa(i), Digest: "d", Notifications: notes(hub, i, i)}
		for {
			tr.mu.Lock()
			b := tr.b
			tr.mu.Unlock()
			if _, err := b.Append(context.WithoutCancel(ctx), a); err == nil {
				break
			}
			if !relay.Pause(tr.t.Context(), 20*time.Millisecond) {
				return
			}
		}
		tr.mu.Lock()
		tr.accepted[hub] = i
		tr.mu.Unlock()
	}
}

// through lets what follows be published through b.
func (tr *traffic) through(b *Backbone) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	tr.b = b
}

// goesOn waits until every hub has accepted n more.
func (tr *traffic) goesOn(what string, n int) {
	tr.t.Helper()
	start := make(map[string]int)
	for _, hub := range trafficHubs {
		tr.mu.Lock()
		start[hub] = tr.accepted[hub]
		tr.mu.Unlock()
	}
	eventually(tr.t, "published on "+what, func() bool {
		tr.mu.Lock()
		defer tr.mu.Unlock()
		return !slices.ContainsFunc(trafficHubs, func(hub string) bool { return tr.accepted[hub] < start[hub]+n })
	})
}

// check compares with the logs: every hub's numbers in order, each once; and the same was read, where no gap was told.
func (tr *traffic) check(b *Backbone) {
	t := tr.t
	t.Helper()
	for p, r := range tr.tails {
		list := logOf(t, b, p)
		next := make(map[string]int)
		var ids []string
		for _, n := range list {
			next[n.Hub]++
			if n.ID != note(n.Hub, next[n.Hub]).ID {
				t.Fatalf("partition %d: %s comes where hub %s has %d", p, n.ID, n.Hub, next[n.Hub])
			}
			ids = append(ids, n.ID)
		}
		for hub, n := range next {
			if n != tr.accepted[hub] {
				t.Errorf("hub %s: %d in the log, %d accepted", hub, n, tr.accepted[hub])
			}
		}
		eventually(t, fmt.Sprintf("partition %d is read to its end", p), func() bool {
			r.mu.Lock()
			defer r.mu.Unlock()
			return len(list) == 0 || r.last == list[len(list)-1].Cursor
		})
		r.mu.Lock()
		if r.gaps == 0 && !slices.Equal(r.ids, ids) {
			t.Errorf("partition %d: read %d without a gap, and the log has %d", p, len(r.ids), len(ids))
		}
		t.Logf("partition %d: %d entries, %d gaps", p, len(list), r.gaps)
		r.mu.Unlock()
	}
}

func openURL(t *testing.T, o Options) *Backbone {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
	defer cancel()
	b, err := Open(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	return b
}

func TestClusterLosesAMasterAndMovesASlot(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	masters, replicas, url := redistest.StartCluster(t)
	safe := openURL(t, Options{URL: url, Partitions: 3, MinReplicas: 1})
	plain := openURL(t, Options{URL: url, Partitions: 3})
	tr, stop := startTraffic(ctx, t, safe, plain)
	tr.goesOn("three masters", 30)

	masters[2].Kill()
	replicas[2].AwaitMaster()
	tr.through(plain) // the new master has no replica
	tr.goesOn("the new master", 30)

	redistest.MoveSlot(t, &masters[0], &masters[1], plain.Keys().Slot(plain.Keys().Log(0)))
	tr.goesOn("a moved slot", 30)
	stop()
	tr.check(plain)
	if _, gaps := tr.tails[0].count(); gaps != 0 {
		t.Errorf("the moved slot lost nothing, and %d gaps were told", gaps)
	}
	if _, gaps := tr.tails[1].count(); gaps != 0 {
		t.Errorf("nothing happened to partition 1, and %d gaps were told", gaps)
	}
}
