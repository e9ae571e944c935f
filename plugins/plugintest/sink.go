// Package plugintest checks that a program, in any language, follows the plugin protocol. `hubrelay plugins check`
// prints the result, and [Run] makes a test of it.
//
// It is independent of a plugin's purpose: any answer to a notification is accepted, and drivers receive only
// migrations that they must reject.
package plugintest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/hubrelay/hubrelay/plugins/host"
	"github.com/hubrelay/hubrelay/relay"
)

// sink is a sink that is being checked.
type sink struct {
	*checkRun
	deliver func(context.Context, relay.Delivery) error
}

func openSink(p Plugin) (*checked, error) {
	r := &sink{checkRun: newRun(p)}
	h, err := host.New(r.hostOptions(p.Config))
	if err != nil {
		return nil, err
	}
	r.host, r.deliver = h, h.Deliver
	return &checked{
		checkRun: r.checkRun,
		first: check{
			"starts, is healthy, accepts its configuration and responds",
			func(ctx context.Context) error { return r.respondsTo(ctx, sampleDelivery("1", 100), 1) },
		},
		checks: []check{
			{
				"answers the next attempt of the same delivery",
				func(ctx context.Context) error { return r.respondsTo(ctx, sampleDelivery("1", 100), 2) },
			},
			{
				"answers an event of 256 KiB",
				func(ctx context.Context) error { return r.respondsTo(ctx, sampleDelivery("2", 256<<10-1000), 1) },
			},
			{"answers a digest of 100", func(ctx context.Context) error {
				return r.respondsTo(ctx, sampleDigest(100), 1)
			}},
			{"answers 1,000 at once, each exactly once", r.answersConcurrentDeliveries},
		},
	}, nil
}

// respondsTo checks that the plugin responds, with any result.
func (s *sink) respondsTo(ctx context.Context, d relay.Delivery, attempt int) error {
	timeout := s.answerTimeout()
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	d.Attempt = attempt
	err := s.deliver(ctx, d)
	switch {
	case host.Answered(err):
		return nil
	case errors.Is(err, context.DeadlineExceeded) && s.host.Status().State == host.StateRunning:
		return fmt.Errorf("no ack for the delivery %q and the attempt %d within %s", d.ID, attempt, timeout)
	}
	return err
}

func (s *sink) answersConcurrentDeliveries(ctx context.Context) error {
	const n = 1000
	before := s.countEvents(host.EventUnknownAck)
	timeout := s.answerTimeout()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	// All of them together may take longer.
	stalled := time.AfterFunc(timeout, func() { cancel(fmt.Errorf("no ack within %s", timeout)) })
	defer stalled.Stop()
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			d := sampleDelivery(fmt.Sprintf("many-%d", i), 100)
			d.Attempt = 1
			if err := s.deliver(ctx, d); !host.Answered(err) {
				errs[i] = err
				return
			}
			stalled.Reset(timeout)
		})
	}
	wg.Wait()
	failed := 0
	var first error
	for _, err := range errs {
		if err != nil {
			failed++
			first = err
		}
	}
	switch strange := s.countEvents(host.EventUnknownAck) - before; {
	case failed > 0:
		return fmt.Errorf("%d of %d got no response: %w; does each ack return a credit?", failed, n, first)
	case strange > 0:
		return fmt.Errorf("%d acks named a delivery and attempt that the plugin did not have", strange)
	}
	return nil
}
