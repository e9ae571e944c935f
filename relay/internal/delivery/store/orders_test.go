package store

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn/conntest"
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
	conntest.OnBoth(t, func(t *testing.T, c *redisconn.Conn) {
		s := &testStore{c, New(c.Commands(), c.Keys())}
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
	})
}

// The next delivery of a key becomes due when the one before it is complete.
func TestOrders_NextBecomesDue(t *testing.T) {
	t.Parallel()
	key := OrderingHub.StoredKey(newDelivery("a").Notifications[0])
	conntest.OnBoth(t, func(t *testing.T, c *redisconn.Conn) {
		s := &testStore{c, New(c.Commands(), c.Keys())}
		for _, id := range []string{"a", "b", "c"} {
			s.schedule(t, id, key, 0)
		}
		for _, want := range []string{"a", "b", "c"} {
			r := s.poll(t, PollRequest{Sink: testSink, MaxClaims: 10, Lease: time.Minute})
			if got := listClaimed(r.Claims); !slices.Equal(got, []string{want}) {
				t.Fatalf("got claims %v, want %s", got, want)
			}
			if _, err := s.Retries.Complete(t.Context(), r.Claims[0]); err != nil {
				t.Fatal(err)
			}
		}
	})
}
