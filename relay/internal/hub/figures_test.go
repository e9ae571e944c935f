package hub

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/internal/testkit"
)

// figures counts replays and resyncs for an Observer.
type figures struct {
	mu       sync.Mutex
	replays  map[string]int
	replayed map[ReplaySource]int
	resynced map[ResyncCause]int
	deflate  map[string]int
}

func newFigures() *figures {
	return &figures{
		replays:  make(map[string]int),
		replayed: make(map[ReplaySource]int),
		resynced: make(map[ResyncCause]int),
		deflate:  make(map[string]int),
	}
}

func (c *counter) Connected(compressed bool) {
	if compressed {
		count(c.figures, c.figures.deflate, "clients", 1)
	}
	c.connected <- struct{}{}
}

func (c *counter) Disconnected(e CloseReason, compressed bool) {
	if compressed {
		count(c.figures, c.figures.deflate, "clients", -1)
	}
	c.ended <- e
}

func (c *counter) ReplayStarted() { count(c.figures, c.figures.replays, "started", 1) }
func (c *counter) ReplayEnded(caughtUp bool) {
	count(c.figures, c.figures.replays, fmt.Sprint("ended ", caughtUp), 1)
}

func (c *counter) Replayed(from ReplaySource, n int) { count(c.figures, c.figures.replayed, from, n) }

func (c *counter) Resynced(why ResyncCause, n int) { count(c.figures, c.figures.resynced, why, n) }

func (c *counter) Compressed(frames, saved int) {
	count(c.figures, c.figures.deflate, "frames", frames)
	count(c.figures, c.figures.deflate, "saved", saved)
}
func (c *counter) CompressionTime(time.Duration) { count(c.figures, c.figures.deflate, "made", 1) }
func (c *counter) CompressionSkipped()           { count(c.figures, c.figures.deflate, "not made", 1) }

// deflated is one of the figures of compression.
func (c *counter) deflated(what string) int {
	c.figures.mu.Lock()
	defer c.figures.mu.Unlock()
	return c.figures.deflate[what]
}

func count[K comparable](f *figures, in map[K]int, what K, n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	in[what] += n
}

// wantFigures compares what was counted, as fmt prints it.
func (c *counter) wantFigures(t *testing.T, want string) {
	t.Helper()
	testkit.WaitFor(t, "figures of replays: "+want, func() bool {
		c.figures.mu.Lock()
		defer c.figures.mu.Unlock()
		return fmt.Sprint(c.figures.replays, c.figures.replayed, c.figures.resynced) == want
	})
}
