package deliver

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync/atomic"
	"time"

	"github.com/hubrelay/hubrelay/relay"
)

// abandonAfter is how long a sink may ignore the end of its context before the attempt is left behind.
const abandonAfter = time.Second

var (
	errIgnored  = errors.New("the sink did not return when its time was over")
	errPanicked = errors.New("the sink panicked")
	errStuck    = errors.New("too many earlier attempts have not returned yet")
)

// attempts calls one sink, whatever it does: it may panic, and it may never return.
type attempts struct {
	sink    relay.Sink
	timeout time.Duration
	most    int64 // how many may be left behind at once

	running atomic.Int64 // goroutines inside the sink
	stuck   atomic.Int64 // those of them that were left behind
	panics  func(value any, stack []byte)
}

// make makes one attempt of at most the timeout and a second.
func (a *attempts) make(ctx context.Context, d relay.Delivery) error {
	if a.stuck.Load() >= a.most {
		return errStuck
	}
	ctx, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	// A goroutine for each attempt costs a microsecond and lets us walk away.
	result := make(chan error, 1)
	var left atomic.Bool
	a.running.Add(1)
	go func() {
		defer a.running.Add(-1)
		result <- a.call(ctx, d)
		if !left.CompareAndSwap(false, true) {
			a.stuck.Add(-1)
		}
	}()
	select {
	case err := <-result:
		return err
	case <-ctx.Done():
	}
	last := time.NewTimer(abandonAfter)
	defer last.Stop()
	select {
	case err := <-result:
		return err
	case <-last.C:
	}
	a.stuck.Add(1)
	if !left.CompareAndSwap(false, true) {
		a.stuck.Add(-1)
		return <-result
	}
	return errIgnored
}

func (a *attempts) call(ctx context.Context, d relay.Delivery) (err error) {
	defer func() {
		if v := recover(); v != nil {
			a.panics(v, debug.Stack())
			// The value stays out of the error, since it may hold anything.
			err = fmt.Errorf("%w (%T)", errPanicked, v)
		}
	}()
	return a.sink.Deliver(ctx, d)
}
