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

	"github.com/hubrelay/hubrelay/internal/redistest"
	"github.com/hubrelay/hubrelay/internal/streamid"
	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn/conntest"
)

// traffic publishes numbered notifications of some hubs and follows all partitions.
type traffic struct {
	t     *testing.T
	tails []*recorder

	mu       sync.Mutex
	b        *testLog
	accepted map[string]int
}

var trafficHubs = []string{"a", "b", "c", "d", "e", "f"}

// startTraffic publishes through b, and reads through another that has no part in it, until stop.
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

// publish repeats each with its key until it is accepted, and gives up none that was begun.
func (tr *traffic) publish(ctx context.Context, hub string) {
	for i := 1; relay.Sleep(ctx, 2*time.Millisecond); i++ {
		a := AppendRequest{Hub: hub, Key: hub + strconv.Itoa(i), Digest: "d", Notifications: conntest.Notifications(hub, i, i)}
		for {
			tr.mu.Lock()
			b := tr.b
			tr.mu.Unlock()
			if _, err := b.Append(context.WithoutCancel(ctx), a); err == nil {
				break
			}
			if !relay.Sleep(tr.t.Context(), 20*time.Millisecond) {
				return
			}
		}
		tr.mu.Lock()
		tr.accepted[hub] = i
		tr.mu.Unlock()
	}
}

// through lets what follows be published through b.
func (tr *traffic) through(b *testLog) {
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
	testkit.WaitFor(tr.t, "published on "+what, func() bool {
		tr.mu.Lock()
		defer tr.mu.Unlock()
		return !slices.ContainsFunc(trafficHubs, func(hub string) bool { return tr.accepted[hub] < start[hub]+n })
	})
}

// lose has a primary store what its replica never gets, once in each partition, and lets the readers see it. The
// replica hangs from then on, and takes over once it is told to go on and the primary is gone.
func (tr *traffic) lose(b *testLog, primary, replica *redistest.Server, partitions ...int) {
	tr.t.Helper()
	replica.Signal(syscall.SIGSTOP)
	// What was on its way to the replica still reaches it.
	if err := primary.Client().ClientKillByFilter(tr.t.Context(), "TYPE", "REPLICA").Err(); err != nil {
		tr.t.Fatal(err)
	}
	for _, p := range partitions {
		hub := trafficHubs[slices.IndexFunc(trafficHubs, func(hub string) bool { return b.Keys().Partition(hub) == p })]
		lost := conntest.Notification(hub, 1_000_000)
		mustAppend(tr.t, b, lost)
		testkit.WaitFor(tr.t, "what will be lost is read", func() bool { return slices.Contains(tr.tails[p].seen(), lost.ID) })
	}
}

// check compares with the logs: every hub's numbers in order, each once; and what somebody holds who forgets at each
// gap what was read behind where it ends, is what the log has.
func (tr *traffic) check(b *testLog) {
	t := tr.t
	t.Helper()
	for p, r := range tr.tails {
		list := readLog(t, b, p)
		next := make(map[string]int)
		var want []entryRef
		for _, n := range list {
			next[n.Hub]++
			if n.ID != conntest.Notification(n.Hub, next[n.Hub]).ID {
				t.Fatalf("partition %d: %s comes where hub %s has %d", p, n.ID, n.Hub, next[n.Hub])
			}
			want = append(want, entryRef{n.Cursor, n.ID})
		}
		for hub, n := range next {
			if n != tr.accepted[hub] {
				t.Errorf("hub %s: %d in the log, %d accepted", hub, n, tr.accepted[hub])
			}
		}
		testkit.WaitFor(t, fmt.Sprintf("partition %d is read to its end", p), func() bool {
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
			t.Errorf("partition %d: %d of %d were read, from the %dth on %v and not %v", p, len(got), len(want), i, got[i:min(i+3, len(got))], want[i:min(i+3, len(want))])
		}
		_, gaps := r.count()
		t.Logf("partition %d: %d entries, %d gaps", p, len(list), gaps)
	}
}

// held is what is left of what was read, where each gap takes away what had been read behind where it ends. Nothing
// may come twice, or out of order.
func (r *recorder) held() (list []entryRef, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	read := make(map[entryRef]bool)
	for i, b := range r.batches {
		if i > 0 && b.Prev != r.batches[i-1].Last {
			return nil, fmt.Errorf("a batch begins at %s, the one before ended at %s", b.Prev, r.batches[i-1].Last)
		}
		if b.Gap && len(b.Notifications) == 0 {
			for len(list) > 0 && streamid.Compare(list[len(list)-1].position, b.Last) > 0 {
				list = list[:len(list)-1]
			}
		}
		for _, n := range b.Notifications {
			at := entryRef{n.Cursor, n.ID}
			if read[at] || len(list) > 0 && streamid.Compare(list[len(list)-1].position, at.position) >= 0 {
				return nil, fmt.Errorf("%v comes behind %v", at, list[max(0, len(list)-3):])
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
	tr.goesOn("three masters", 30)

	tr.lose(plain, masters[2].Server, replicas[2].Server, 2)
	masters[2].Kill()
	replicas[2].Signal(syscall.SIGCONT)
	replicas[2].TakeOver()
	tr.through(plain) // the new master has no replica
	tr.goesOn("the new master", 30)

	redistest.MoveSlot(t, &masters[0], &masters[1], plain.Keys().Slot(Key(plain.Keys(), 0)))
	tr.goesOn("a moved slot", 30)
	stop()
	tr.check(plain)
	for p, want := range []bool{false, false, true} { // the moved slot, the one that nothing happened to, the lost master's
		if _, gaps := tr.tails[p].count(); gaps > 0 != want {
			t.Errorf("of partition %d %d gaps were told", p, gaps)
		}
	}
}
