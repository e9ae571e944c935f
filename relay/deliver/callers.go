package deliver

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hubrelay/hubrelay/relay"
)

// keptIdle is how long a caller waits for its next call, and up to twice as long.
const keptIdle = 100 * time.Millisecond

// caller is a goroutine that makes calls which may never return, one after the other. A goroutine of its own for every
// call would have to grow its stack to the depth of an HTTP client each time.
type caller struct {
	calls  chan call
	result chan error
	over   atomic.Bool // the call has returned or was left behind, whichever came first

	ctx    context.Context // of the calls that begin before until
	cancel context.CancelFunc
	until  time.Time
}

// slack is by how much an attempt may take longer than its timeout, and the context of one that has returned may end later. For
// so long a caller's attempts share a context and its timer: to make both anew costs more than all else that bounds them.
func slack(timeout time.Duration) time.Duration { return min(timeout/64, keptIdle) }

// limit makes sure that the context ends after the timeout, at most by the slack later.
func (c *caller) limit(timeout time.Duration, late error) {
	now := time.Now()
	if c.ctx != nil && c.ctx.Err() == nil && now.Before(c.until) {
		return
	}
	if c.cancel != nil {
		c.cancel()
	}
	c.until = now.Add(slack(timeout))
	c.ctx, c.cancel = context.WithDeadlineCause(context.Background(), c.until.Add(timeout), late)
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

type call struct {
	ctx context.Context
	d   relay.Delivery
}

func newCaller() *caller { return &caller{calls: make(chan call, 1), result: make(chan error, 1)} }

// callers are the idle ones, which end when there is nothing to do for them. The zero value is ready for use.
type callers struct {
	mu     sync.Mutex
	idle   []*caller // the one that was busy last is at the end
	least  int       // how few were idle since the last reaping: as many had nothing to do
	reaper *time.Timer
	closed bool
}

// take returns an idle caller, or nil.
func (s *callers) take() *caller {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := len(s.idle) - 1
	if n < 0 {
		return nil
	}
	c := s.idle[n]
	s.idle[n] = nil
	s.idle = s.idle[:n]
	s.least = min(s.least, n)
	c.over.Store(false)
	return c
}

// put takes back a caller whose call has returned.
func (s *callers) put(c *caller) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		close(c.calls)
		return
	}
	s.idle = append(s.idle, c)
	if s.reaper == nil {
		s.least = 0
		s.reaper = time.AfterFunc(keptIdle, s.reap)
	}
}

// reap ends the callers that were idle all the time since it was last called.
func (s *callers) reap() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.endLocked(s.least)
	s.least = len(s.idle)
	if s.reaper = nil; s.least > 0 {
		s.reaper = time.AfterFunc(keptIdle, s.reap)
	}
}

// close ends all of them, and those that are put back later.
func (s *callers) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	s.endLocked(len(s.idle))
	s.least = 0
}

func (s *callers) endLocked(n int) {
	for _, c := range s.idle[:n] {
		close(c.calls)
	}
	left := copy(s.idle, s.idle[n:])
	clear(s.idle[left:])
	s.idle = s.idle[:left]
}
