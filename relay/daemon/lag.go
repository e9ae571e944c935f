package daemon

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/hubrelay/hubrelay/internal/streamid"
	"github.com/hubrelay/hubrelay/relay/internal/eventlog"
)

// readPositions is up to where this node has read each partition of the log.
type readPositions []atomic.Pointer[string]

// updateLag looks every few seconds for what this node's readers have not read, until ctx ends. What was read last says nothing
// about a reader that hangs, and a log to which nobody writes has no lag however old that is.
func (a *App) updateLag(ctx context.Context, log *eventlog.Log, read readPositions) error {
	tick := time.NewTicker(sinkStatsInterval)
	defer tick.Stop()
	for {
		for partition := range read {
			if d, known := readLag(ctx, log, read, partition); known {
				a.metrics.Lag(partition, d)
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// readLag is how long the oldest notification has waited that was not read; it is not known while Redis is away.
func readLag(ctx context.Context, log *eventlog.Log, read readPositions, partition int) (d time.Duration, known bool) {
	next, err := log.Range(ctx, partition, *read[partition].Load(), 1)
	if err != nil || len(next) == 0 {
		return 0, err == nil
	}
	return sinceStored(next[0].Cursor, time.Now()), true
}

// sinceStored is how long ago an entry was stored, by the clock of Redis that made its id; zero where that is ahead.
func sinceStored(id string, now time.Time) time.Duration {
	at, ok := streamid.ParsePosition(id)
	if !ok {
		return 0
	}
	return max(now.Sub(time.UnixMilli(int64(at.MS))), 0)
}
