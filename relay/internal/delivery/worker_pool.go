package delivery

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hubrelay/hubrelay/relay"
)

// workerIdleTimeout is how long a caller waits for its next call, and up to twice as long.
const workerIdleTimeout = 100 * time.Millisecond

// attemptWorker is a goroutine that makes calls which may never return, one after the other. A goroutine of its own for every
// call would have to grow its stack to the depth of an HTTP client each time.
type attemptWorker struct {
	calls   chan attemptCall
	result  chan error
	settled atomic.Bool // the call has returned or was left behind, whichever came first

	ctx      context.Context // of the calls that begin before until
	cancel   context.CancelFunc
	deadline time.Time
}

// timeoutSlack is by how much an attempt may take longer than its timeout, and the context of one that has returned may end later. For
// so long a caller's attempts share a context and its timer: to make both anew costs more than all else that bounds them.
func timeoutSlack(timeout time.Duration) time.Duration { return min(timeout/64, workerIdleTimeout) }

// ensureDeadline makes sure that the context ends after the timeout, at most by the slack later.
func (c *attemptWorker) ensureDeadline(timeout time.Duration, late error) {
	now := time.Now()
	if c.ctx != nil && c.ctx.Err() == nil && now.Before(c.deadline) {
		return
	}
	if c.cancel != nil {
		c.cancel()
	}
	c.deadline = now.Add(timeoutSlack(timeout))
	c.ctx, c.cancel = context.WithDeadlineCause(context.Background(), c.deadline.Add(timeout), late)
}

// attemptContext ends with the caller's context, and has the values of whoever wants the attempt.
type attemptContext struct {
	context.Context
	values context.Context
}

func (c attemptContext) Value(key any) any {
	if v := c.Context.Value(key); v != nil {
		return v
	}
	return c.values.Value(key)
}

type attemptCall struct {
	ctx context.Context
	d   relay.Delivery
}

func newAttemptWorker() *attemptWorker {
	return &attemptWorker{calls: make(chan attemptCall, 1), result: make(chan error, 1)}
}

// workerPool are the idle ones, which end when there is nothing to do for them. The zero value is ready for use.
type workerPool struct {
	mu      sync.Mutex
	idle    []*attemptWorker // the one that was busy last is at the end
	minIdle int              // how few were idle since the last reaping: as many had nothing to do
	reaper  *time.Timer
	closed  bool
}

// acquire returns an idle caller, or nil.
func (s *workerPool) acquire() *attemptWorker {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := len(s.idle) - 1
	if n < 0 {
		return nil
	}
	c := s.idle[n]
	s.idle[n] = nil
	s.idle = s.idle[:n]
	s.minIdle = min(s.minIdle, n)
	c.settled.Store(false)
	return c
}

// put takes back a caller whose call has returned.
func (s *workerPool) put(c *attemptWorker) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		close(c.calls)
		return
	}
	s.idle = append(s.idle, c)
	if s.reaper == nil {
		s.minIdle = 0
		s.reaper = time.AfterFunc(workerIdleTimeout, s.reapIdle)
	}
}

// reapIdle ends the callers that were idle all the time since it was last called.
func (s *workerPool) reapIdle() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopLocked(s.minIdle)
	s.minIdle = len(s.idle)
	if s.reaper = nil; s.minIdle > 0 {
		s.reaper = time.AfterFunc(workerIdleTimeout, s.reapIdle)
	}
}

// close ends all of them, and those that are put back later.
func (s *workerPool) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	s.stopLocked(len(s.idle))
	s.minIdle = 0
}

func (s *workerPool) stopLocked(n int) {
	for _, c := range s.idle[:n] {
		close(c.calls)
	}
	left := copy(s.idle, s.idle[n:])
	clear(s.idle[left:])
	s.idle = s.idle[:left]
}
