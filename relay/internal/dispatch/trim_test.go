package dispatch

import (
	"bytes"
	"context"
	"fmt"
	"strconv"
	"sync/atomic"
	"testing"

	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/eventlog"
)

// trimCounter counts the rounds of trimming.
type trimCounter struct {
	*eventlog.Log
	trims atomic.Int64
}

func (c *trimCounter) Trim(ctx context.Context, partition int, r eventlog.Retention) error {
	c.trims.Add(1)
	return c.Log.Trim(ctx, partition, r)
}

// A burst must not fill Redis before the next round of maintenance.
func TestDispatcher_TrimsDuringBurst(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	o := e.options(Sink{Name: "none", Filter: relay.Filter{Topics: patterns(t, "hub.updated")}})
	counter := &trimCounter{Log: e.log}
	o.Log = counter
	o.Retention = func() eventlog.Retention { return eventlog.Retention{MaxBytes: 8 << 20} }
	e.run(o, true)
	const count = 100
	for i := range count {
		n := relay.Notification{
			ID: strconv.Itoa(i), Topic: "job.created", Hub: "h", Data: bytes.Repeat([]byte("x"), 200_000),
		}
		if _, err := e.log.Append(t.Context(), eventlog.AppendRequest{Hub: "h", Notifications: []relay.Notification{n}}); err != nil {
			t.Fatal(err)
		}
	}
	// 20 MB are about nineteen eighths of the maximum. Batches that are dispatched together are trimmed together.
	testkit.Eventually(t, "several rounds of trimming", func() error {
		if n := counter.trims.Load(); n < 4 {
			return fmt.Errorf("got %d", n)
		}
		return nil
	})
}
