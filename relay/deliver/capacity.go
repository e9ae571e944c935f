package deliver

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"
)

// ErrFull means that a sink's delay queue holds as many deliveries as its backlog allows.
var ErrFull = errors.New("the sink's delay queue is full")

// seldom is the least pause between two lines in the log about the same state of a sink.
const seldom = time.Minute

// capacity bounds what a sink's delay queue takes of Redis. While it is full, fresh deliveries are not attempted: what
// fails would have no place, and in their own queue they wait as well. All nodes learn how much there is with every
// answer about the delay queue; what is under way may go beyond the bound.
type capacity struct {
	limit int64 // zero is no bound

	mu    sync.Mutex
	taken int64
	room  chan struct{} // closed and replaced when there is room again
}

func newCapacity(limit int64) *capacity {
	return &capacity{limit: limit, room: make(chan struct{})}
}

// heard takes over how many deliveries are parked, and tells whether the delay queue has become full by that.
func (c *capacity) heard(parked int64) (filled bool) {
	if c.limit <= 0 {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	was := c.taken >= c.limit
	c.taken = parked
	full := parked >= c.limit
	if was && !full {
		close(c.room)
		c.room = make(chan struct{})
	}
	return full && !was
}

// left counts one delivery less until Redis is heard again.
func (c *capacity) left() {
	c.mu.Lock()
	taken := c.taken
	c.mu.Unlock()
	c.heard(max(0, taken-1))
}

func (c *capacity) full() bool {
	if c.limit <= 0 {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.taken >= c.limit
}

// wait returns when there may be room, when stop is closed, or with the error of ctx.
func (c *capacity) wait(ctx context.Context, stop <-chan struct{}) error {
	c.mu.Lock()
	full, room := c.limit > 0 && c.taken >= c.limit, c.room
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

// heardParked takes over what Redis said about the delay queue.
func (p *Pipeline) heardParked(n int64) {
	if !p.capacity.heard(n) {
		return
	}
	if _, ok := p.filled.allow(); ok {
		p.o.Log.Error("the sink's delay queue is full; fresh deliveries wait in its queue, whose oldest are dropped when that "+
			"is full too; mend the receiver, raise backlog, or remove the sink", "parked", n, "backlog", p.o.Backlog)
	}
}

// lettersDropped counts dead letters that had to go, for lines in the log that are bounded.
type lettersDropped struct {
	limiter
	n atomic.Int64
}

// lettersGone says that the oldest dead letters had to go.
func (p *Pipeline) lettersGone(n int64) {
	if n == 0 {
		return
	}
	p.o.Observer.DeadLettersDropped(p.o.Name, n)
	p.Dropped(n)
	p.gone.n.Add(n)
	if _, ok := p.gone.allow(); ok {
		p.o.Log.Error("the sink has as many dead letters as its backlog allows, the oldest were dropped; look at them, "+
			"then replay or drop them, or raise backlog", "dropped", p.gone.n.Swap(0), "backlog", p.o.Backlog)
	}
}

// entomb writes the dead letter of a claimed delivery, and reports whether it did.
func (p *Pipeline) entomb(ctx context.Context, c claim, fields []any) bool {
	var gone int64
	held := p.settle(ctx, c, func(ctx context.Context) (held bool, err error) {
		gone, held, err = p.o.Store.bury(ctx, c, p.o.Backlog, fields)
		return held, err
	})
	if held {
		p.capacity.left()
		p.onPark(0) // the next of its ordering key may be due now
		p.lettersGone(gone)
	}
	return held
}
