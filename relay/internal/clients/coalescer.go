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
func (g *coalescer) add(b Batch) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if b.Gap {
		g.flush()
		g.emit(b)
		return
	}
	list := b.Notifications
	g.partition = b.Partition
	for i := range list {
		g.size += len(list[i].Data)
	}
	if g.pending == nil {
		g.pending = list[:len(list):len(list)] // append must not write to the array of the caller
	} else {
		g.pending = append(g.pending, list...)
	}
	left := g.wait - time.Since(g.lastEmit)
	switch {
	case left <= 0 || g.size >= burstBytes:
		g.flush()
	case g.timer == nil:
		g.timer = time.AfterFunc(left, g.onTimer)
	}
}

// flushNow emits the pending notifications.
func (g *coalescer) flushNow() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.flush()
}

func (g *coalescer) onTimer() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.flush()
}

// flush emits the pending notifications. The caller holds mu. A timer that fires at the same time finds nothing.
func (g *coalescer) flush() {
	if g.timer != nil {
		g.timer.Stop()
		g.timer = nil
	}
	if len(g.pending) == 0 {
		return
	}
	list := g.pending
	g.pending, g.size = nil, 0
	g.emit(Batch{Partition: g.partition, Notifications: list})
	g.lastEmit = time.Now()
}
