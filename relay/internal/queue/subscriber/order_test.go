package subscriber_test

import (
	"context"
	"strconv"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/hubrelay/hubrelay/relay/internal/queue/subscriber"
)

// A subscription begins with the entries that the previous one released, even if new entries are published at the
// same time.
func TestSubscribe_KeepsOrderAfterRelease(t *testing.T) {
	t.Parallel()
	r := newTestRedis(t)
	s := r.subscriber(func(c *subscriber.Config) {
		c.MaxInFlight = func(string) int { return 4 }
		c.Key = func(string, *message.Message) string { return "one" }
	})
	const each = 10
	due := 0
	for round := range 100 {
		ctx, cancel := context.WithCancel(t.Context())
		c, err := s.Subscribe(ctx, "q")
		if err != nil {
			t.Fatal(err)
		}
		r.publish("q", round*each, (round+1)*each)
		for range each / 2 {
			m := next(t, c)
			if m.UUID != strconv.Itoa(due) {
				t.Fatalf("round %d: got message %s, want %d", round, m.UUID, due)
			}
			due++
			m.Ack()
		}
		cancel()
		for m := range c {
			m.Nack()
		}
	}
}
