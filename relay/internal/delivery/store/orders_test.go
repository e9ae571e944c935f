package store

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/internal/testkit"
)

// The leader of an ordered sink starts in a full Redis, because its deliveries free memory.
func TestOrders_KeysInFullRedis(t *testing.T) {
	t.Parallel()
	s := startStore(t)
	key := OrderingHub.StoredKey(newDelivery("a").Notifications[0])
	s.schedule(t, "a", key, time.Hour)
	if err := s.Commands().ConfigSet(t.Context(), "maxmemory", "1").Err(); err != nil {
		t.Fatal(err)
	}
	keys, err := s.Orders.Keys(t.Context(), testSink)
	if err != nil || !slices.Equal(keys, []string{key}) {
		t.Errorf("got %v, %v, want %s", keys, err, key)
	}
}

// If a formerly ordered sink has batches or digests, a claim makes at most 1,000 of the
// deliveries due that waited for the claimed one.
func TestPoll_ReleasesOrder(t *testing.T) {
	t.Parallel()
	const count, page = 1500, 1000
	key := OrderingHub.StoredKey(newDelivery("a").Notifications[0])
	s := startStore(t)
	ids := make([]string, count)
	for i := range ids {
		ids[i] = fmt.Sprintf("%024d", i)
		s.schedule(t, ids[i], key, 0)
	}
	if got := listClaimed(s.claim(t, time.Millisecond)); !slices.Equal(got, ids[:1]) {
		t.Fatalf("an ordered sink claims %v, want the first", got)
	}
	q := PollRequest{Sink: testSink, MaxClaims: count, Lease: time.Minute, ReleaseOrder: true}
	testkit.WaitForValue(t, "the lease to end", 1, func() int { return len(s.poll(t, q).Claims) })
	for _, want := range [][]string{ids[1 : page+1], ids[page+1:], nil} {
		claimed := listClaimed(s.poll(t, q).Claims)
		slices.Sort(claimed)
		if !slices.Equal(claimed, want) {
			t.Fatalf("got %d claims, want %d", len(claimed), len(want))
		}
	}
	if keys, err := s.Orders.Keys(t.Context(), testSink); err != nil || len(keys) != 0 {
		t.Errorf("got ordering keys %v, %v, want none", keys, err)
	}
}
