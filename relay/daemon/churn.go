package daemon

import (
	"context"
	"runtime/debug"
	"time"

	"github.com/hubrelay/hubrelay/relay/internal/hub"
)

const (
	// churnInterval is how often the clients are counted.
	churnInterval = time.Second
	// churnThreshold is how many came or went where cleaning up behind them is worth a collection.
	churnThreshold = 1000
	// churnQuietLimit is how many may still come or go in waveEvery when a wave is over.
	churnQuietLimit = 20
	// churnQuietIntervals is for how many times waveEvery no more than waveOver may come or go until what came and went before is no
	// part of the next wave.
	churnQuietIntervals = 5
)

// churnDetector notices that many clients came or went and that this is over.
type churnDetector struct{ lastCount, churned, quietIntervals int }

// settled is told how many clients there are, and says once behind a wave that it is over.
func (w *churnDetector) settled(clients int) bool {
	step := max(clients-w.lastCount, w.lastCount-clients)
	w.lastCount = clients
	w.churned += step
	if step > churnQuietLimit {
		w.quietIntervals = 0
		return false
	}
	w.quietIntervals++
	over := w.churned >= churnThreshold
	if over || w.quietIntervals >= churnQuietIntervals {
		w.churned = 0
	}
	return over
}

// releaseMemoryAfterChurn gives memory back behind each wave of clients. Tokens and upgrades leave twice as much garbage as a client
// keeps, and a node whose clients are idle would not collect it for minutes.
func releaseMemoryAfterChurn(ctx context.Context, clients *hub.Hub) error {
	tick := time.NewTicker(churnInterval)
	defer tick.Stop()
	var w churnDetector
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if w.settled(clients.Clients()) {
			debug.FreeOSMemory()
		}
	}
}
