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

// abandonAfter is how long a sink may take to return behind the end of its context before the attempt is left behind. A
// command has a second to end and is killed then, and what a sink knows by its end must not get lost on a busy machine.
const abandonAfter = 3 * time.Second

var (
	errIgnored  = errors.New("the sink did not return when its time was over")
	errPanicked = errors.New("the sink panicked")
	errStuck    = errors.New("too many earlier attempts have not returned yet")
)

// lateError is a context.DeadlineExceeded that says for people what happened.
type lateError time.Duration

func (e lateError) Error() string { return "no answer within " + time.Duration(e).String() }
func (e lateError) Unwrap() error { return context.DeadlineExceeded }

// attempts calls one sink, whatever it does: it may panic, and it may never return.
type attempts struct {
	sink    relay.Sink
	timeout time.Duration
	late    error // why an attempt ends after the timeout
	most    int64 // how many may be left behind at once

	running atomic.Int64 // goroutines inside the sink
	stuck   atomic.Int64 // those of them that were left behind
	callers callers
	panics  func(value any, stack []byte)
}

// make makes one attempt of at most the timeout, its slack and [abandonAfter].
func (a *attempts) make(ctx context.Context, d relay.Delivery) error {
	if a.stuck.Load() >= a.most {
		return errStuck
	}
	c := a.callers.take()
	if c == nil {
		c = newCaller()
		go a.serve(c)
	}
	c.limit(a.timeout, a.late)
	a.running.Add(1)
	c.calls <- call{attemptContext{c.ctx, ctx}, d}
	select {
	case err := <-c.result:
		a.callers.put(c)
		return err
	case <-c.ctx.Done():
	case <-ctx.Done(): // passed on here: to link the two for every attempt costs more
		c.cancel()
	}
	last := time.NewTimer(abandonAfter)
	defer last.Stop()
	select {
	case err := <-c.result:
		a.callers.put(c)
		return err
	case <-last.C:
	}
	a.stuck.Add(1)
	if !c.over.CompareAndSwap(false, true) {
		a.stuck.Add(-1)
		err := <-c.result
		a.callers.put(c)
		return err
	}
	return errIgnored
}

// serve is the caller's goroutine. It ends with its calls, or when an attempt of it was left behind.
func (a *attempts) serve(c *caller) {
	defer func() { c.cancel() }()
	for next := range c.calls {
		err := a.call(next.ctx, next.d)
		a.running.Add(-1)
		if !c.over.CompareAndSwap(false, true) {
			a.stuck.Add(-1)
			return
		}
		c.result <- err
	}
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
