package eventlog

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/internal/await"
	"github.com/hubrelay/hubrelay/internal/redistest"
	"github.com/hubrelay/hubrelay/internal/streamid"
	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
)

// traffic publishes numbered notifications of several hubs and follows all partitions.
type traffic struct {
	t     *testing.T
	tails []*recorder

	mu       sync.Mutex
	b        *testLog
	accepted map[string]int
}

var trafficHubs = []string{"a", "b", "c", "d", "e", "f"}

// startTraffic publishes through b until stop is called, and follows the log through reads.
func startTraffic(ctx context.Context, t *testing.T, b, reads *testLog) (tr *traffic, stop func()) {
	t.Helper()
	tr = &traffic{t: t, b: b, accepted: make(map[string]int)}
	var readers, writers sync.WaitGroup
	reading, endReading := context.WithCancel(ctx)
	for p := range reads.Keys().Partitions() {
		r := &recorder{}
		tr.tails = append(tr.tails, r)
		readers.Go(func() { _ = tailFrom(reading, reads, p, streamid.Zero, r.add) })
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

// publish appends one notification after the other. It repeats each with the same key until it is accepted.
func (tr *traffic) publish(ctx context.Context, hub string) {
	for i := 1; await.Duration(ctx, 2*time.Millisecond); i++ {
		list := notifications(hub, i, i)
		a := AppendRequest{Hub: hub, Key: hub + strconv.Itoa(i), Digest: "d", Notifications: list}
		for {
			tr.mu.Lock()
			b := tr.b
			tr.mu.Unlock()
			if _, err := b.Append(context.WithoutCancel(ctx), a); err == nil {
				break
			}
			if !await.Duration(tr.t.Context(), 20*time.Millisecond) {
				return
			}
		}
		tr.mu.Lock()
		tr.accepted[hub] = i
		tr.mu.Unlock()
	}
}

// switchTo publishes all later notifications through b.
func (tr *traffic) switchTo(b *testLog) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	tr.b = b
}

// awaitMore waits until n more notifications of every hub are accepted.
func (tr *traffic) awaitMore(what string, n int) {
	tr.t.Helper()
	start := make(map[string]int)
	for _, hub := range trafficHubs {
		tr.mu.Lock()
		start[hub] = tr.accepted[hub]
		tr.mu.Unlock()
	}
	testkit.WaitFor(tr.t, "events on "+what, func() bool {
		tr.mu.Lock()
		defer tr.mu.Unlock()
		return !slices.ContainsFunc(trafficHubs, func(hub string) bool { return tr.accepted[hub] < start[hub]+n })
	})
}

// lose makes the primary store an entry in each partition that its replica never receives, and waits until the
// readers have it. The replica is stopped. It can become the master after SIGCONT.
func (tr *traffic) lose(b *testLog, primary, replica *redistest.Server, partitions ...int) {
	tr.t.Helper()
	replica.Signal(syscall.SIGSTOP)
	// Otherwise, data in flight would still reach the replica.
	if err := primary.Client().ClientKillByFilter(tr.t.Context(), "TYPE", "REPLICA").Err(); err != nil {
		tr.t.Fatal(err)
	}
	for _, p := range partitions {
		hub := trafficHubs[slices.IndexFunc(trafficHubs, func(hub string) bool { return b.Keys().Partition(hub) == p })]
		lost := notification(hub, 1_000_000)
		mustAppend(tr.t, b, lost)
		testkit.WaitFor(tr.t, "the readers to have the lost entry", func() bool {
			return slices.Contains(tr.tails[p].seen(), lost.ID)
		})
	}
}

// check compares the readers with the logs. Each hub has all accepted numbers in order, once. A reader that discards
// at each gap the entries after its end has the same entries as the log.
func (tr *traffic) check(b *testLog) {
	t := tr.t
	t.Helper()
	for p, r := range tr.tails {
		list := readLog(t, b, p)
		next := make(map[string]int)
		var want []entryRef
		for _, n := range list {
			next[n.Hub]++
			if n.ID != notification(n.Hub, next[n.Hub]).ID {
				t.Fatalf("partition %d: got ID %s of hub %s, want number %d", p, n.ID, n.Hub, next[n.Hub])
			}
			want = append(want, entryRef{n.Cursor, n.ID})
		}
		for hub, n := range next {
			if n != tr.accepted[hub] {
				t.Errorf("hub %s: got %d entries in the log, want %d", hub, n, tr.accepted[hub])
			}
		}
		testkit.WaitFor(t, fmt.Sprintf("partition %d to be read to its end", p), func() bool {
			r.mu.Lock()
			defer r.mu.Unlock()
			return len(want) == 0 || r.last == want[len(want)-1].position
		})
		got, err := r.held()
		if err != nil {
			t.Errorf("partition %d: %v", p, err)
		} else if !slices.Equal(got, want) {
			i := 0
			for i < min(len(got), len(want)) && got[i] == want[i] {
				i++
			}
			t.Errorf("partition %d: got %d entries, want %d; from index %d got %v, want %v", p, len(got), len(want), i,
				got[i:min(i+3, len(got))], want[i:min(i+3, len(want))])
		}
		_, gaps := r.count()
		t.Logf("partition %d: %d entries, %d gaps", p, len(list), gaps)
	}
}

// held returns the entries that were read, except the ones that a gap discarded. No entry may be read twice or out of
// order.
func (r *recorder) held() (list []entryRef, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	read := make(map[entryRef]bool)
	for i, b := range r.batches {
		if i > 0 && b.Prev != r.batches[i-1].Last {
			return nil, fmt.Errorf("batch %d: got Prev %s, want %s", i, b.Prev, r.batches[i-1].Last)
		}
		if b.Gap && len(b.Notifications) == 0 {
			for len(list) > 0 && streamid.Compare(list[len(list)-1].position, b.Last) > 0 {
				list = list[:len(list)-1]
			}
		}
		for _, n := range b.Notifications {
			at := entryRef{n.Cursor, n.ID}
			if read[at] || len(list) > 0 && streamid.Compare(list[len(list)-1].position, at.position) >= 0 {
				return nil, fmt.Errorf("got %v after %v", at, list[max(0, len(list)-3):])
			}
			read[at] = true
			list = append(list, at)
		}
	}
	return list, nil
}

func TestLongClusterLosesMasterAndMovesSlot(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	masters, replicas, url := redistest.StartCluster(t)
	safe := openOptions(t, redisconn.Options{URL: url, Partitions: 3, MinReplicas: 1})
	plain := openOptions(t, redisconn.Options{URL: url, Partitions: 3})
	tr, stop := startTraffic(ctx, t, safe, plain)
	tr.awaitMore("three masters", 30)

	tr.lose(plain, masters[2].Server, replicas[2].Server, 2)
	masters[2].Kill()
	replicas[2].Signal(syscall.SIGCONT)
	replicas[2].TakeOver()
	tr.switchTo(plain) // the new master has no replica
	tr.awaitMore("the new master", 30)

	redistest.MoveSlot(t, &masters[0], &masters[1], plain.Keys().Slot(Key(plain.Keys(), 0)))
	tr.awaitMore("a moved slot", 30)
	stop()
	tr.check(plain)
	for p, want := range []bool{false, false, true} { // moved slot, unaffected slot, slot of the killed master
		if _, gaps := tr.tails[p].count(); gaps > 0 != want {
			t.Errorf("partition %d: got %d gaps, want any: %t", p, gaps, want)
		}
	}
}
