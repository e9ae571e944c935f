package clients

import (
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/internal/streamid"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/clients/logcache"
)

// walked is what find finds, by looking at everything back to there.
func walked(l *feed, at []streamid.Position) resumePoint {
	now, met, behind := append([]streamid.Position(nil), l.positions...), make([]bool, len(at)), 0
	for s := range at {
		met[s] = at[s].Matches(now[s])
		if now[s].Compare(at[s]) > 0 {
			behind++
		}
	}
	m := resumePoint{next: l.nextSeq(), missingPartition: -1}
	for ; behind > 0 && m.next > l.baseSeq; m.next-- {
		e := l.entryAt(m.next - 1)
		lacked := now[e.partitionIndex].Compare(at[e.partitionIndex]) > 0
		now[e.partitionIndex] = e.before
		if lacked && e.before.Compare(at[e.partitionIndex]) <= 0 {
			behind--
		}
		met[e.partitionIndex] = met[e.partitionIndex] || at[e.partitionIndex].Matches(e.before)
	}
	for s := range at {
		switch order := now[s].Compare(at[s]); {
		case order < 0:
			m.partitionsAhead++
		case order > 0 && (m.missingPartition < 0 || at[s].Compare(at[m.missingPartition]) < 0):
			m.missingPartition = s
		}
		if !met[s] {
			m.unverified = append(m.unverified, unverifiedPosition{s, now[s].Compare(at[s]) <= 0})
		}
	}
	return m
}

func TestLocate(t *testing.T) {
	t.Parallel()
	for seed := range uint64(300) {
		random := rand.New(rand.NewPCG(seed, 1))
		partitions := 1 + random.IntN(4)
		l := newFeed(partitions, 0, partitions, 20*(logcache.EntryOverhead+2), nil, testCursors)
		clocks := make([]uint64, partitions)
		for range random.IntN(60) {
			p := random.IntN(partitions)
			if random.IntN(30) == 0 {
				clocks[p] += 2
				l.resetPartition(p, streamid.Position{MS: clocks[p]})
				continue
			}
			list := make([]relay.Notification, 1+random.IntN(3))
			for i := range list {
				clocks[p] += 1 + uint64(random.IntN(3))
				list[i] = relay.Notification{Data: []byte("x"), Cursor: fmt.Sprintf("%d-0", clocks[p])}
			}
			l.appendBatch(p, list)
		}
		for range 50 {
			at := make([]streamid.Position, partitions)
			for s := range at {
				at[s].MS = uint64(random.IntN(int(clocks[s]) + 3))
				at[s].IDHash = []uint16{0, streamid.HashID(""), 7}[random.IntN(3)]
			}
			want := walked(l, at)
			got := l.locate(at)
			if want.missingPartition >= 0 { // then it is not looked at
				got.next, got.partitionsAhead, want.next, want.partitionsAhead = 0, 0, 0, 0
			}
			if !reflect.DeepEqual(got, want) {
				t.Fatalf("seed %d: %+v is at %+v, want %+v", seed, at, got, want)
			}
		}
	}
}

// A client whose position is older than the history, or that has seen only one partition, calls locate often. It must
// not look at all entries, because broadcasts wait.
func TestLocate_IsFast(t *testing.T) {
	t.Parallel()
	const few, many = 500, 50_000
	quickest := func(count int, at []streamid.Position) time.Duration {
		l := newFeed(2, 0, 2, count*(logcache.EntryOverhead+2), nil, testCursors)
		for p := range 2 {
			list := make([]relay.Notification, count)
			for i := range list {
				list[i] = relay.Notification{Data: []byte("x"), Cursor: fmt.Sprintf("%d-0", i+1)}
			}
			l.appendBatch(p, list)
		}
		least := time.Duration(math.MaxInt64)
		for range 200 { // others may have the processor in most of them
			began := time.Now()
			for range 10 {
				l.locate(at)
			}
			least = min(least, time.Since(began))
		}
		return least
	}
	for name, at := range map[string]func(count uint64) []streamid.Position{
		"behind":           func(uint64) []streamid.Position { return []streamid.Position{{}, {}} },
		"at the beginning": func(count uint64) []streamid.Position { return []streamid.Position{{MS: count}, {MS: 1}} },
	} {
		if small, large := quickest(few, at(few)), quickest(many, at(many)); large > 10*small {
			t.Errorf("%s: ten looks at %d entries took %s, at %d %s", name, many, large, few, small)
		}
	}
}
