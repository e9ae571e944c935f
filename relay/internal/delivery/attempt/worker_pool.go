package attempt

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hubrelay/hubrelay/relay"
)

// workerIdleTimeout is the minimum time for which a worker waits for its next call. The maximum is twice as long.
const workerIdleTimeout = 100 * time.Millisecond

// worker is a goroutine that makes one call after the other. A new goroutine for every call would have to grow its
// stack to the depth of an HTTP client each time.
type worker struct {
	calls   chan call
	result  chan result
	status  atomic.Int64 // of the current call, if the sink has reported one
	settled atomic.Bool  // the call has returned or was abandoned

	ctx      context.Context // of the calls that start before deadline
	cancel   context.CancelFunc
	deadline time.Time
}

// timeoutSlack is the time by which an attempt may exceed its timeout. The calls of a worker in that time share a
// context and its timer, because creating both costs more than everything else that limits a call.
func timeoutSlack(timeout time.Duration) time.Duration { return min(timeout/64, workerIdleTimeout) }

// ensureDeadline ensures that the context ends after the timeout, at most the slack later.
func (w *worker) ensureDeadline(timeout time.Duration, cause error) {
	now := time.Now()
	if w.ctx != nil && w.ctx.Err() == nil && now.Before(w.deadline) {
		return
	}
	if w.cancel != nil {
		w.cancel()
	}
	w.deadline = now.Add(timeoutSlack(timeout))
	reporting := relay.WithStatusCallback(context.Background(), func(status int) { w.status.Store(int64(status)) })
	w.ctx, w.cancel = context.WithDeadlineCause(reporting, w.deadline.Add(timeout), cause)
}

// callContext is the context of a worker with the values of the caller's context.
type callContext struct {
	context.Context
	values context.Context
}

func (c callContext) Value(key any) any {
	if v := c.Context.Value(key); v != nil {
		return v
	}
	return c.values.Value(key)
}

type call struct {
	ctx context.Context
	d   relay.Delivery
}

// result is the result of a call.
type result struct {
	status int
	err    error
}

func newWorker() *worker {
	return &worker{calls: make(chan call, 1), result: make(chan result, 1)}
}

// workerPool contains idle workers and ends unneeded ones. Its zero value is ready for use.
type workerPool struct {
	mu      sync.Mutex
	idle    []*worker // the last one was busy most recently
	minIdle int       // minimum length of idle since the last reaping, which is the number of unneeded workers
	reaper  *time.Timer
	closed  bool
}

// acquire returns an idle worker, or nil.
func (p *workerPool) acquire() *worker {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := len(p.idle) - 1
	if n < 0 {
		return nil
	}
	w := p.idle[n]
	p.idle[n] = nil
	p.idle = p.idle[:n]
	p.minIdle = min(p.minIdle, n)
	w.settled.Store(false)
	return w
}

// release adds a worker whose call has returned.
func (p *workerPool) release(w *worker) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		close(w.calls)
		return
	}
	p.idle = append(p.idle, w)
	if p.reaper == nil {
		p.minIdle = 0
		p.reaper = time.AfterFunc(workerIdleTimeout, p.reapIdle)
	}
}

// reapIdle ends the workers that were idle since its last call.
func (p *workerPool) reapIdle() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stopLocked(p.minIdle)
	p.minIdle = len(p.idle)
	if p.reaper = nil; p.minIdle > 0 {
		p.reaper = time.AfterFunc(workerIdleTimeout, p.reapIdle)
	}
}

// close ends all workers, also if they are released later.
func (p *workerPool) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	p.stopLocked(len(p.idle))
	p.minIdle = 0
}

func (p *workerPool) stopLocked(n int) {
	for _, w := range p.idle[:n] {
		close(w.calls)
	}
	rest := copy(p.idle, p.idle[n:])
	clear(p.idle[rest:])
	p.idle = p.idle[:rest]
}
