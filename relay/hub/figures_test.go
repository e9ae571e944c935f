package hub

import (
	"fmt"
	"sync"
	"testing"
)

// figures is what an Observer is told of replays and resyncs.
type figures struct {
	mu       sync.Mutex
	replays  map[string]int
	replayed map[Source]int
	resynced map[Cause]int
}

func newFigures() *figures {
	return &figures{replays: make(map[string]int), replayed: make(map[Source]int), resynced: make(map[Cause]int)}
}

func (c *counter) ReplayStarted() { count(c.figures, c.figures.replays, "started", 1) }
func (c *counter) ReplayEnded(caughtUp bool) {
	count(c.figures, c.figures.replays, fmt.Sprint("ended ", caughtUp), 1)
}
func (c *counter) Replayed(from Source, n int) { count(c.figures, c.figures.replayed, from, n) }
func (c *counter) Resynced(why Cause, n int)   { count(c.figures, c.figures.resynced, why, n) }

func count[K comparable](f *figures, in map[K]int, what K, n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	in[what] += n
}

// wantFigures compares what was counted, as fmt prints it.
func (c *counter) wantFigures(t *testing.T, want string) {
	t.Helper()
	eventually(t, "figures of replays: "+want, func() bool {
		c.figures.mu.Lock()
		defer c.figures.mu.Unlock()
		return fmt.Sprint(c.figures.replays, c.figures.replayed, c.figures.resynced) == want
	})
}
