package subscriber_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hubrelay/hubrelay/relay/internal/queue/subscriber"
)

// Close also releases entries that arrived while the subscription was ending.
func TestClose_ReleasesBacklog(t *testing.T) {
	t.Parallel()
	r := newTestRedis(t)
	for i := range 10 {
		topic := fmt.Sprintf("q-%d", i)
		r.publish(topic, 0, 2000)
		s := r.subscriber(func(c *subscriber.Config) { c.MaxInFlight = func(string) int { return 16 } })
		c := r.subscribe(s, topic)
		for range 1000 {
			next(t, c).Ack()
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		// Released entries have a long idle time, so any consumer claims them.
		all := redis.XPendingExtArgs{Stream: topic, Group: "sinks", Start: "-", End: "+", Count: 2000}
		for _, p := range r.redis.XPendingExt(t.Context(), &all).Val() {
			if p.Idle < time.Hour {
				t.Fatalf("entry %s of %s was not released", p.ID, topic)
			}
		}
	}
}
