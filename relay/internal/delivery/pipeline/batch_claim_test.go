package pipeline

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/replay"
)

// A sealed batch stays unchanged if its first attempt is interrupted, because the destination is gone or the node
// stops.
func TestBatch_InterruptedFirstAttempt(t *testing.T) {
	t.Parallel()
	for name, first := range map[string]func(context.Context) error{
		"gone":  func(context.Context) error { return relay.Gone(errFar) },
		"ended": func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() },
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t)
			began := make(chan struct{})
			before := e.pipeline(&fakeSink{answer: func(ctx context.Context, _ relay.Delivery) error {
				close(began)
				return first(ctx)
			}}, batching(time.Hour, 5))
			ctx, end := context.WithCancel(t.Context())
			defer end()
			var wg sync.WaitGroup
			for i := range 5 {
				wg.Go(func() { _ = handleDelivery(ctx, before, event(i, "a.b", "h1")) })
			}
			<-began
			if name == "ended" {
				end()
			}
			wg.Wait()
			if err := e.resume(); err != nil {
				t.Fatal(err)
			}
			sink := &fakeSink{answer: answers(nil)}
			e.retries(e.pipeline(sink, batching(time.Hour, 5)))
			e.waitEmptied()
			if got := sink.deliveries(); len(got) != 1 || !slices.Equal(brought(t, got), upTo(5)) {
				t.Errorf("arrived %+v, dead: %v", got, e.deadLetters())
			}
		})
	}
}

// A scheduled notification that is added to a batch lowers the depth once.
func TestBatch_ScheduledNotificationLowersDepthOnce(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	list := replayLog{event(1, "a.b", "h1").Notifications[0]}
	if done, err := e.replay(t.Context(), list, replay.Request{Sink: "s", Partitions: 1, After: replay.StartAt("0-0")}); err != nil ||
		done.Scheduled != 1 {
		t.Fatal(done, err)
	}
	p := e.pipeline(
		&fakeSink{answer: answers(nil)},
		func(o *Options) { o.Batch, o.Backlog = Batch{Wait: time.Millisecond, Max: 9}, 100 },
	)
	reserved := p.admission.Reserve(1)
	l := e.poll(reserved.Len(), time.Minute)
	reserved.Close(1, false)
	e.scheduleDue(5)
	p.Retry(t.Context(), l.Claims[0])
	if n := e.scheduledCount(); n != 5 || p.admission.Depth() != n {
		t.Errorf("%d are scheduled, and %d are counted", n, p.admission.Depth())
	}
}
