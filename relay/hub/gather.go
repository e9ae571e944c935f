package hub

import (
	"sync"
	"time"

	"github.com/hubrelay/hubrelay/relay"
)

// Gatherer stands before [Hub.Broadcast] and hands on what comes within a short time together, so that a client gets
// it in one write: the write is what a delivery costs. What comes after a pause is handed on at once; what follows it
// waits until the time since then is over, and neither a burst nor a gap waits at all. It is for one partition. Its methods
// may be called concurrently.
type Gatherer struct {
	wait time.Duration
	give func(Batch)

	mu    sync.Mutex // held while it gives, so that the order stays
	held  []relay.Notification
	of    int // their partition
	size  int
	gave  time.Time
	timer *time.Timer // runs while something is held
}

// NewGatherer returns a gatherer that gives at most once in wait, but for bursts; zero passes everything on.
func NewGatherer(wait time.Duration, give func(Batch)) *Gatherer {
	return &Gatherer{wait: wait, give: give}
}

// Broadcast takes a batch, which nobody may change afterwards.
func (g *Gatherer) Broadcast(b Batch) {
	if g.wait <= 0 {
		g.give(b)
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if b.Gap {
		g.flush()
		g.give(b)
		return
	}
	list := b.Notifications
	g.of = b.Partition
	for i := range list {
		g.size += len(list[i].Data)
	}
	if g.held == nil {
		g.held = list[:len(list):len(list)] // not to write behind it
	} else {
		g.held = append(g.held, list...)
	}
	left := g.wait - time.Since(g.gave)
	switch {
	case left <= 0 || g.size >= burstBytes:
		g.flush()
	case g.timer == nil:
		g.timer = time.AfterFunc(left, g.due)
	}
}

// Close hands on what is held. It may be called twice, and after the last Broadcast.
func (g *Gatherer) Close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.flush()
}

func (g *Gatherer) due() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.flush()
}

// flush hands on what is held. The caller holds mu. A timer that fires just then finds less, or nothing.
func (g *Gatherer) flush() {
	if g.timer != nil {
		g.timer.Stop()
		g.timer = nil
	}
	if len(g.held) == 0 {
		return
	}
	list := g.held
	g.held, g.size = nil, 0
	g.give(Batch{Partition: g.of, Notifications: list})
	g.gave = time.Now()
}
