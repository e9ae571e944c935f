package daemon

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/hubrelay/hubrelay/internal/streamid"
	"github.com/hubrelay/hubrelay/relay/internal/eventlog"
)

// lagInterval is the time between two comparisons with the log.
const lagInterval = 5 * time.Second

// readPositions are the positions up to which this node has read the partitions of the log.
type readPositions []atomic.Pointer[string]

// updateLag updates the lag of this node's readers until ctx ends. It compares the positions with the log, because
// the time of the last read does not reveal a stuck reader or an idle log.
func (d *Daemon) updateLag(ctx context.Context, log *eventlog.Log, read readPositions) error {
	tick := time.NewTicker(lagInterval)
	defer tick.Stop()
	for {
		for partition := range read {
			if age, known := readLag(ctx, log, read, partition); known {
				d.metrics.Lag(partition, age)
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// readLag returns the age of the oldest unread notification. It is unknown while Redis is unreachable.
func readLag(ctx context.Context, log *eventlog.Log, read readPositions, partition int) (d time.Duration, known bool) {
	next, err := log.Range(ctx, partition, *read[partition].Load(), 1)
	if err != nil || len(next) == 0 {
		return 0, err == nil
	}
	return sinceStored(next[0].Cursor, time.Now()), true
}

// sinceStored returns the age of an entry. Its ID has the time of Redis, so a clock difference could make the age
// negative; then the result is 0.
func sinceStored(id string, now time.Time) time.Duration {
	at, ok := streamid.ParsePosition(id)
	if !ok {
		return 0
	}
	return max(now.Sub(time.UnixMilli(int64(at.MS))), 0)
}
