package subscriber_test

import (
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/relay/internal/queue/subscriber"
)

// Abort ends the contexts of messages in flight at once, whatever the HandlerGrace is. The messages are delivered
// again.
func TestAbort_IgnoresHandlerGrace(t *testing.T) {
	t.Parallel()
	r := newTestRedis(t)
	s := r.subscriber(func(c *subscriber.Config) { c.HandlerGrace = time.Hour })
	messages := r.subscribe(s, "s")
	r.publish("s", 0, 1)
	m := next(t, messages)
	s.Abort()
	<-m.Context().Done()
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	again := r.subscriber(nil)
	ackAll(t, r.subscribe(again, "s"), 0, 1)
}
