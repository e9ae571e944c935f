package hub

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/hubrelay/hubrelay/relay/internal/hub/frame"
)

const (
	// drainFraction of the time that a drain has may go by until the last is told; the rest is for what is queued for it.
	drainFraction = 0.5
	drainInterval = 10 * time.Millisecond
)

// drain tells the clients to go, in random order and spread over time: whoever is told connects again at once. It
// ends early when all have gone by themselves, and at the latest with ctx.
func (h *Hub) drain(ctx context.Context, gone <-chan struct{}) {
	all := h.all()
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
			all[told].close(closeRequest{code: frame.CloseRestart, reason: "the relay is restarting; connect again", closeReason: ClosedDrain})
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

// clientsDue is how many of the clients should have been told by now.
func clientsDue(clients int, passed, spread time.Duration) int {
	if passed >= spread {
		return clients
	}
	return int(float64(clients) * float64(passed) / float64(spread))
}
