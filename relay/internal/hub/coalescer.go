package hub

import (
	"sync"
	"time"

	"github.com/hubrelay/hubrelay/relay"
)

// Coalescer stands before [Hub.Broadcast] and hands on what comes within a short time together, so that a client gets
// it in one write: the write is what a delivery costs. What comes after a pause is handed on at once; what follows it
// waits until the time since then is over, and neither a burst nor a gap waits at all. It is for one partition. Its methods
// may be called concurrently.
type Coalescer struct {
	wait time.Duration
	emit func(Batch)

	mu        sync.Mutex // held while it gives, so that the order stays
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

// Broadcast takes a batch, which nobody may change afterwards.
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
		g.pending = list[:len(list):len(list)] // not to write behind it
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

// Close hands on what is held. It may be called twice, and after the last Broadcast.
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

// flush hands on what is held. The caller holds mu. A timer that fires just then finds less, or nothing.
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
