package hub

import (
	"context"
	"math/rand/v2"
	"time"
)

const (
	// drainFraction is the part of a drain's time within which all clients are closed. The rest is for their queued
	// frames.
	drainFraction = 0.5
	drainInterval = 10 * time.Millisecond
)

// drainClients closes the clients in random order, spread over time, because closed clients reconnect at once. It
// returns early when all have left, and at the latest when ctx ends.
func (h *Hub) drainClients(ctx context.Context, gone <-chan struct{}) {
	all := h.allClients()
	rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	began := time.Now()
	deadline, limited := ctx.Deadline()
	spread := time.Duration(len(all)) * h.opts.DrainPace
	if limited {
		spread = min(spread, time.Duration(float64(time.Until(deadline))*drainFraction))
	}
	timer := time.NewTicker(drainInterval)
	defer timer.Stop()
	for told := 0; told < len(all); {
		for due := clientsDue(len(all), time.Since(began), spread); told < due; told++ {
			all[told].close(closeRequest{
				code: CloseRestart, reason: "the relay is restarting; connect again", closeReason: ClosedDrain,
			})
		}
		if told == len(all) {
			return
		}
		select {
		case <-timer.C:
		case <-gone:
			return
		case <-ctx.Done():
			spread = 0
		}
	}
}

// clientsDue returns the number of clients that should be closed by now.
func clientsDue(clients int, passed, spread time.Duration) int {
	if passed >= spread {
		return clients
	}
	return int(float64(clients) * float64(passed) / float64(spread))
}
