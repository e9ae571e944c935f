package clients

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/hubrelay/hubrelay/relay/internal/clients/frame"
)

const (
	// drainFraction is the part of the available time in which close frames are sent. The rest is for queued frames.
	drainFraction = 0.5
	drainInterval = 10 * time.Millisecond
)

// drain closes the clients in random order and spread over time, because they reconnect at once. It returns early
// when all have left, and at the latest when ctx ends.
func (s *Server) drain(ctx context.Context, gone <-chan struct{}) {
	all := s.allConnections()
	rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	start := time.Now()
	deadline, limited := ctx.Deadline()
	spread := time.Duration(len(all)) * s.opts.DrainPace
	if limited {
		spread = min(spread, time.Duration(float64(time.Until(deadline))*drainFraction))
	}
	timer := time.NewTicker(drainInterval)
	defer timer.Stop()
	for closed := 0; closed < len(all); {
		for due := clientsDue(len(all), time.Since(start), spread); closed < due; closed++ {
			all[closed].close(closeRequest{
				code: frame.CloseRestart, reason: "the relay is restarting; connect again", closeReason: ClosedDrain,
			})
		}
		if closed == len(all) {
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

// clientsDue returns the number of clients that should have received a close frame.
func clientsDue(clients int, passed, spread time.Duration) int {
	if passed >= spread {
		return clients
	}
	return int(float64(clients) * float64(passed) / float64(spread))
}
