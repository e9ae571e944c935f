package clients

import (
	"sync"
	"time"

	"github.com/hubrelay/hubrelay/relay"
)

// coalescer combines the batches of one partition before they are broadcast, because the cost of a delivery is one
// write. A batch after a pause is emitted at once. Later batches wait until the delay since then has passed. Bursts
// and gaps do not wait. Its methods may be called concurrently.
type coalescer struct {
	wait time.Duration
	emit func(Batch)

	mu        sync.Mutex // held during emit to keep the order
	pending   []relay.Notification
	partition int // of pending
	size      int
	lastEmit  time.Time
	timer     *time.Timer // runs while something is pending
}

// newCoalescer returns a coalescer that emits at most once per delay, except for bursts.
func newCoalescer(wait time.Duration, emit func(Batch)) *coalescer {
	return &coalescer{wait: wait, emit: emit}
}

// add takes a batch, which must not be changed afterwards.
func (c *coalescer) add(b Batch) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if b.Gap {
		c.flush()
		c.emit(b)
		return
	}
	list := b.Notifications
	c.partition = b.Partition
	for i := range list {
		c.size += len(list[i].Data)
	}
	if c.pending == nil {
		c.pending = list[:len(list):len(list)] // append must not write to the array of the caller
	} else {
		c.pending = append(c.pending, list...)
	}
	left := c.wait - time.Since(c.lastEmit)
	switch {
	case left <= 0 || c.size >= burstBytes:
		c.flush()
	case c.timer == nil:
		c.timer = time.AfterFunc(left, c.onTimer)
	}
}

// flushNow emits the pending notifications.
func (c *coalescer) flushNow() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.flush()
}

func (c *coalescer) onTimer() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.flush()
}

// flush emits the pending notifications. The caller holds mu. A timer that fires at the same time finds nothing.
func (c *coalescer) flush() {
	if c.timer != nil {
		c.timer.Stop()
		c.timer = nil
	}
	if len(c.pending) == 0 {
		return
	}
	list := c.pending
	c.pending, c.size = nil, 0
	c.emit(Batch{Partition: c.partition, Notifications: list})
	c.lastEmit = time.Now()
}
