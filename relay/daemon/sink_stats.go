package daemon

import (
	"context"
	"time"

	"github.com/hubrelay/hubrelay/relay/internal/delivery/store"
	"github.com/hubrelay/hubrelay/relay/internal/queue"
)

// sinkStatsInterval is the time between reads of statistics from Redis.
const sinkStatsInterval = 5 * time.Second

// sinkStats are the statistics of a sink in Redis.
type sinkStats struct {
	store.Stats
	// Queued is the number of entries in the queue.
	Queued int64
	// OldestAge is the age of the oldest delivery in the queue or among the scheduled retries, or 0.
	OldestAge time.Duration
}

// loadSinkStats returns the statistics of the named sinks, in the same order.
func loadSinkStats(
	ctx context.Context, queues *queue.Store, store *store.Store, names []string,
) ([]sinkStats, error) {
	stats, err := queues.Stats(ctx, names)
	if err != nil {
		return nil, err
	}
	stored, err := store.Stats.Read(ctx, names)
	if err != nil {
		return nil, err
	}
	list := make([]sinkStats, len(names))
	for i := range list {
		list[i] = sinkStats{
			Stats: stored[i], Queued: stats[i].Length, OldestAge: max(stats[i].OldestAge,
				stored[i].OldestRetryAge),
		}
	}
	return list, nil
}

// updateSinkStats updates the metrics about the content of Redis until ctx ends.
func (a *Daemon) updateSinkStats(ctx context.Context, queues *queue.Store, store *store.Store) error {
	tick := time.NewTicker(sinkStatsInterval)
	defer tick.Stop()
	for {
		var names []string
		for _, s := range a.sinks.all() {
			names = append(names, s.name)
		}
		list, err := loadSinkStats(ctx, queues, store, names)
		if ctx.Err() != nil {
			return nil
		}
		a.metrics.RedisUp(err == nil)
		for i, f := range list {
			if a.sinks.get(names[i]) == nil {
				continue // removed since the list was made
			}
			a.metrics.Backlog(names[i], f.Queued+f.InDigests, f.Scheduled, f.DeadLetters)
			a.metrics.Oldest(names[i], f.OldestAge)
			a.metrics.LastSuccess(names[i], f.LastSuccess)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}
