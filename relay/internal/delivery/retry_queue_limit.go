package delivery

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hubrelay/hubrelay/relay/internal/delivery/store"
)

// warnInterval is the least pause between two lines in the log about the same state of a sink.
const warnInterval = time.Minute

// retryQueueLimit bounds what a sink's delay queue takes of Redis. While it is full, fresh deliveries are not attempted: what
// fails would have no place, and in their own queue they wait as well. All nodes learn how much there is with every
// answer about the delay queue; what is under way may go beyond the bound.
type retryQueueLimit struct {
	limit int64 // zero is no bound

	mu    sync.Mutex
	count int64
	freed chan struct{} // closed and replaced when there is room again
}

func newRetryQueueLimit(limit int64) *retryQueueLimit {
	return &retryQueueLimit{limit: limit, freed: make(chan struct{})}
}

// setCount takes over how many deliveries are parked, and tells whether the delay queue has become full by that.
func (c *retryQueueLimit) setCount(parked int64) (filled bool) {
	if c.limit <= 0 {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	was := c.count >= c.limit
	c.count = parked
	full := parked >= c.limit
	if was && !full {
		close(c.freed)
		c.freed = make(chan struct{})
	}
	return full && !was
}

// decrement counts one delivery less until Redis is heard again.
func (c *retryQueueLimit) decrement() {
	c.mu.Lock()
	taken := c.count
	c.mu.Unlock()
	c.setCount(max(0, taken-1))
}

func (c *retryQueueLimit) isFull() bool {
	if c.limit <= 0 {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.count >= c.limit
}

// wait returns when there may be room, when stop is closed, or with the error of ctx.
func (c *retryQueueLimit) wait(ctx context.Context, stop <-chan struct{}) error {
	c.mu.Lock()
	full, room := c.limit > 0 && c.count >= c.limit, c.freed
	c.mu.Unlock()
	if !full {
		return nil
	}
	select {
	case <-room:
	case <-stop:
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}

// updateRetryCount takes over what Redis said about the delay queue.
func (p *Pipeline) updateRetryCount(n int64) {
	if !p.retryLimit.setCount(n) {
		return
	}
	if _, ok := p.queueFullLog.allowLine(); ok {
		p.opts.Log.Error("the sink's delay queue is full; fresh deliveries wait in its queue, whose oldest are dropped when that "+
			"is full too; mend the receiver, raise backlog, or remove the sink", "parked", n, "backlog", p.opts.Backlog)
	}
}

// droppedLetterLog counts dead letters that had to go, for lines in the log that are bounded.
type droppedLetterLog struct {
	logLimiter
	n atomic.Int64
}

// onDeadLettersDropped says that the oldest dead letters had to go.
func (p *Pipeline) onDeadLettersDropped(n int64) {
	if n == 0 {
		return
	}
	p.opts.Observer.DeadLettersDropped(p.opts.Name, n)
	p.Dropped(n)
	p.droppedLog.n.Add(n)
	if _, ok := p.droppedLog.allowLine(); ok {
		p.opts.Log.Error("the sink has as many dead letters as its backlog allows, the oldest were dropped; look at them, "+
			"then replay or drop them, or raise backlog", "dropped", p.droppedLog.n.Swap(0), "backlog", p.opts.Backlog)
	}
}

// writeDeadLetter writes the dead letter of a claimed delivery, and reports whether it did.
func (p *Pipeline) writeDeadLetter(ctx context.Context, c store.Claim, entry store.DeadLetterEntry) bool {
	var gone int64
	held := p.settleClaim(ctx, c, func(ctx context.Context) (held bool, err error) {
		gone, held, err = p.opts.Store.DeadLetters.Add(ctx, c, p.opts.Backlog, entry)
		return held, err
	})
	if held {
		p.retryLimit.decrement()
		p.onRetryScheduled(0) // the next of its ordering key may be due now
		p.onDeadLettersDropped(gone)
	}
	return held
}
