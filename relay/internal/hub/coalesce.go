package hub

import (
	"sync"
	"time"

	"github.com/hubrelay/hubrelay/relay"
)

// Coalescer precedes [Hub.Broadcast]. It combines notifications that arrive within a short time, so a client receives
// them in one write, which is the main cost of a delivery. The first one after a pause is forwarded at once, and the
// following ones wait for the rest of the interval. Bursts and gaps never wait. A Coalescer belongs to one partition.
// Its methods may be called concurrently.
type Coalescer struct {
	wait time.Duration
	emit func(Batch)

	mu        sync.Mutex // held while it forwards, to keep the order
	pending   []relay.Notification
	partition int // their partition
	size      int
	lastEmit  time.Time
	timer     *time.Timer // runs while something is held
}

// NewCoalescer returns a gatherer that gives at most once in wait, but for bursts; zero passes everything on.
func NewCoalescer(wait time.Duration, give func(Batch)) *Coalescer {
	return &Coalescer{wait: wait, emit: give}
}

// Broadcast adds a batch. The caller must not change it afterwards.
func (g *Coalescer) Broadcast(b Batch) {
	if g.wait <= 0 {
		g.emit(b)
		return
	}
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
		g.pending = list[:len(list):len(list)] // appending must not overwrite the caller's slice
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

// Close forwards the held notifications. It may be called twice, and after the last Broadcast.
func (g *Coalescer) Close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.flush()
}

func (g *Coalescer) onTimer() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.flush()
}

// flush forwards the held notifications. The caller holds mu. A timer that fires at the same time finds fewer or none.
func (g *Coalescer) flush() {
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
