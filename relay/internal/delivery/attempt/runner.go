// Package attempt calls a sink once, with a time limit, and classifies why the call failed.
//
// A sink may panic, and it may never return. The package does not decide whether or when an attempt is made.
package attempt

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync/atomic"
	"time"

	"github.com/hubrelay/hubrelay/relay"
)

// AbandonGrace is the time in which a sink may return after its context has ended. An attempt is abandoned after that.
// A command has a second to end and is then killed, and its result should not be lost on a busy machine.
const AbandonGrace = 3 * time.Second

var (
	errAbandoned        = errors.New("the sink did not return after its timeout")
	errPanicked         = errors.New("the sink panicked")
	errTooManyAbandoned = errors.New("too many earlier attempts have not returned yet")
)

// timeoutError is a context.DeadlineExceeded with a text for operators.
type timeoutError time.Duration

func (e timeoutError) Error() string { return "no response within " + time.Duration(e).String() }
func (e timeoutError) Unwrap() error { return context.DeadlineExceeded }

// Options configure a [Runner].
type Options struct {
	Sink relay.Sink
	// Timeout limits one attempt, which may take a sixty-fourth of it longer, up to 100 ms.
	Timeout time.Duration
	// MaxAbandoned is the maximum number of attempts that may be abandoned at once.
	MaxAbandoned int
	// OnPanic is called with the value and the stack of a panic.
	OnPanic func(value any, stack []byte)
}

// Runner makes the attempts of one sink. It may be used concurrently.
type Runner struct {
	o          Options
	timeoutErr error

	running   atomic.Int64 // goroutines in the sink
	abandoned atomic.Int64 // abandoned ones
	workers   workerPool
}

// NewRunner returns a Runner.
func NewRunner(o Options) *Runner { return &Runner{o: o, timeoutErr: timeoutError(o.Timeout)} }

// Running returns the number of attempts that have not returned, abandoned ones included.
func (r *Runner) Running() int64 { return r.running.Load() }

// Close ends idle goroutines, and the others when their attempts return.
func (r *Runner) Close() { r.workers.close() }

// Run makes one attempt. It returns at the latest [AbandonGrace] after the timeout or the end of ctx. status is that of a
// successful attempt, or 0 if the sink has not reported one.
func (r *Runner) Run(ctx context.Context, d relay.Delivery) (status int, err error) {
	if r.abandoned.Load() >= int64(r.o.MaxAbandoned) {
		return 0, errTooManyAbandoned
	}
	w := r.workers.acquire()
	if w == nil {
		w = newWorker()
		go r.runWorker(w)
	}
	w.ensureDeadline(r.o.Timeout, r.timeoutErr)
	r.running.Add(1)
	w.calls <- call{callContext{w.ctx, ctx}, d}
	select {
	case got := <-w.result:
		r.workers.release(w)
		return got.status, got.err
	case <-w.ctx.Done():
	case <-ctx.Done(): // linking both contexts for every attempt would cost more
		w.cancel()
	}
	grace := time.NewTimer(AbandonGrace)
	defer grace.Stop()
	select {
	case got := <-w.result:
		r.workers.release(w)
		return got.status, got.err
	case <-grace.C:
	}
	r.abandoned.Add(1)
	if !w.settled.CompareAndSwap(false, true) {
		r.abandoned.Add(-1)
		got := <-w.result
		r.workers.release(w)
		return got.status, got.err
	}
	return 0, errAbandoned
}

// runWorker is the goroutine of a worker. It ends after its last call, or when an abandoned call returns.
func (r *Runner) runWorker(w *worker) {
	defer func() { w.cancel() }()
	for next := range w.calls {
		w.status.Store(0)
		got := result{err: r.callSink(next.ctx, next.d)}
		if got.err == nil {
			got.status = int(w.status.Load())
		}
		r.running.Add(-1)
		if !w.settled.CompareAndSwap(false, true) {
			r.abandoned.Add(-1)
			return
		}
		w.result <- got
	}
}

func (r *Runner) callSink(ctx context.Context, d relay.Delivery) (err error) {
	defer func() {
		if v := recover(); v != nil {
			r.o.OnPanic(v, debug.Stack())
			// The error does not contain the value, which may contain a secret.
			err = fmt.Errorf("%w (%T)", errPanicked, v)
		}
	}()
	return r.o.Sink.Deliver(ctx, d)
}
