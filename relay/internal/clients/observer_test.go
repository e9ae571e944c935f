package clients

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/internal/testkit"
)

// observedCounts counts replays and resyncs for an Observer.
type observedCounts struct {
	mu       sync.Mutex
	replays  map[string]int
	replayed map[ReplaySource]int
	resynced map[ResyncReason]int
	deflate  map[string]int
}

func newObservedCounts() *observedCounts {
	return &observedCounts{
		replays:  make(map[string]int),
		replayed: make(map[ReplaySource]int),
		resynced: make(map[ResyncReason]int),
		deflate:  make(map[string]int),
	}
}

func (c *counter) Connected(compressed bool) {
	if compressed {
		count(c.counts, c.counts.deflate, "clients", 1)
	}
	c.connected <- struct{}{}
}

func (c *counter) Disconnected(e CloseReason, compressed bool) {
	if compressed {
		count(c.counts, c.counts.deflate, "clients", -1)
	}
	c.ended <- e
}

func (c *counter) ReplayStarted() { count(c.counts, c.counts.replays, "started", 1) }
func (c *counter) ReplayEnded(caughtUp bool) {
	count(c.counts, c.counts.replays, fmt.Sprint("ended ", caughtUp), 1)
}

func (c *counter) Replayed(from ReplaySource, n int) { count(c.counts, c.counts.replayed, from, n) }

func (c *counter) Resynced(why ResyncReason, n int) { count(c.counts, c.counts.resynced, why, n) }

func (c *counter) Compressed(frames, saved int) {
	count(c.counts, c.counts.deflate, "frames", frames)
	count(c.counts, c.counts.deflate, "saved", saved)
}
func (c *counter) CompressionTime(time.Duration) { count(c.counts, c.counts.deflate, "made", 1) }
func (c *counter) CompressionSkipped()           { count(c.counts, c.counts.deflate, "not made", 1) }

// deflated returns one of the counts of compression.
func (c *counter) deflated(what string) int {
	c.counts.mu.Lock()
	defer c.counts.mu.Unlock()
	return c.counts.deflate[what]
}

func count[K comparable](f *observedCounts, in map[K]int, what K, n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	in[what] += n
}

// wantFigures compares what was counted, as fmt prints it.
func (c *counter) wantFigures(t *testing.T, want string) {
	t.Helper()
	testkit.WaitForValue(t, "the counts of replays: "+want, want, func() string {
		c.counts.mu.Lock()
		defer c.counts.mu.Unlock()
		return fmt.Sprint(c.counts.replays, c.counts.replayed, c.counts.resynced)
	})
}
