package store

import (
	"slices"
	"testing"
	"time"
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
