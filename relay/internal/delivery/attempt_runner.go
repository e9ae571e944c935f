package delivery

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync/atomic"
	"time"

	"github.com/hubrelay/hubrelay/relay"
)

// abandonGrace is how long a sink may take to return behind the end of its context before the attempt is left behind. A
// command has a second to end and is killed then, and what a sink knows by its end must not get lost on a busy machine.
const abandonGrace = 3 * time.Second

var (
	errAttemptAbandoned = errors.New("the sink did not return when its time was over")
	errPanicked         = errors.New("the sink panicked")
	errTooManyAbandoned = errors.New("too many earlier attempts have not returned yet")
)

// attemptTimeoutError is a context.DeadlineExceeded that says for people what happened.
type attemptTimeoutError time.Duration

func (e attemptTimeoutError) Error() string { return "no answer within " + time.Duration(e).String() }
func (e attemptTimeoutError) Unwrap() error { return context.DeadlineExceeded }

// attemptRunner calls one sink, whatever it does: it may panic, and it may never return.
type attemptRunner struct {
	sink         relay.Sink
	timeout      time.Duration
	timeoutErr   error // why an attempt ends after the timeout
	maxAbandoned int64 // how many may be left behind at once

	running   atomic.Int64 // goroutines inside the sink
	abandoned atomic.Int64 // those of them that were left behind
	workers   workerPool
	onPanic   func(value any, stack []byte)
}

func newAttemptRunner(o *Options) *attemptRunner {
	return &attemptRunner{
		sink: o.Sink, timeout: o.Timeout, timeoutErr: attemptTimeoutError(o.Timeout), maxAbandoned: int64(o.Concurrency),
		onPanic: func(value any, stack []byte) {
			o.Log.Error("sink panicked", "panic_type", fmt.Sprintf("%T", value), "stack", string(stack))
		},
	}
}

// runAttempt makes one attempt of at most the timeout, its slack and [abandonGrace].
func (a *attemptRunner) runAttempt(ctx context.Context, d relay.Delivery) error {
	if a.abandoned.Load() >= a.maxAbandoned {
		return errTooManyAbandoned
	}
	c := a.workers.acquire()
	if c == nil {
		c = newAttemptWorker()
		go a.runWorker(c)
	}
	c.ensureDeadline(a.timeout, a.timeoutErr)
	a.running.Add(1)
	c.calls <- attemptCall{attemptContext{c.ctx, ctx}, d}
	select {
	case err := <-c.result:
		a.workers.put(c)
		return err
	case <-c.ctx.Done():
	case <-ctx.Done(): // passed on here: to link the two for every attempt costs more
		c.cancel()
	}
	last := time.NewTimer(abandonGrace)
	defer last.Stop()
	select {
	case err := <-c.result:
		a.workers.put(c)
		return err
	case <-last.C:
	}
	a.abandoned.Add(1)
	if !c.settled.CompareAndSwap(false, true) {
		a.abandoned.Add(-1)
		err := <-c.result
		a.workers.put(c)
		return err
	}
	return errAttemptAbandoned
}

// runWorker is the caller's goroutine. It ends with its calls, or when an attempt of it was left behind.
func (a *attemptRunner) runWorker(c *attemptWorker) {
	defer func() { c.cancel() }()
	for next := range c.calls {
		err := a.callSink(next.ctx, next.d)
		a.running.Add(-1)
		if !c.settled.CompareAndSwap(false, true) {
			a.abandoned.Add(-1)
			return
		}
		c.result <- err
	}
}

func (a *attemptRunner) callSink(ctx context.Context, d relay.Delivery) (err error) {
	defer func() {
		if v := recover(); v != nil {
			a.onPanic(v, debug.Stack())
			// The value stays out of the error, since it may hold anything.
			err = fmt.Errorf("%w (%T)", errPanicked, v)
		}
	}()
	return a.sink.Deliver(ctx, d)
}
