package clients

import (
	"context"
	"runtime/debug"
	"time"
)

const (
	// churnInterval is the time between counts of the clients.
	churnInterval = time.Second
	// churnThreshold is the number of connects and disconnects that justifies a garbage collection.
	churnThreshold = 1000
	// churnQuietLimit is the maximum number of changes in a quiet interval.
	churnQuietLimit = 20
	// churnQuietIntervals is the number of quiet intervals after which earlier changes no longer count.
	churnQuietIntervals = 5
)

// churnDetector detects the end of a wave of connects or disconnects.
type churnDetector struct{ lastCount, churned, quietIntervals int }

// settled records the current number of clients. It returns true once after each wave.
func (c *churnDetector) settled(clients int) bool {
	step := max(clients-c.lastCount, c.lastCount-clients)
	c.lastCount = clients
	c.churned += step
	if step > churnQuietLimit {
		c.quietIntervals = 0
		return false
	}
	c.quietIntervals++
	ended := c.churned >= churnThreshold
	if ended || c.quietIntervals >= churnQuietIntervals {
		c.churned = 0
	}
	return ended
}

// ReleaseMemory returns memory to the system after the start, and after each wave of connects or disconnects, until ctx
// ends.
// Tokens and upgrades leave twice as much garbage as a client uses, and a node with idle clients would not collect it
// for minutes.
func (s *Server) ReleaseMemory(ctx context.Context) error {
	tick := time.NewTicker(churnInterval)
	defer tick.Stop()
	w := churnDetector{churned: churnThreshold} // the start leaves garbage, too
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if w.settled(s.Clients()) {
			debug.FreeOSMemory()
		}
	}
}
