package daemon

import (
	"context"
	"time"

	"github.com/hubrelay/hubrelay/relay/internal/delivery"
	"github.com/hubrelay/hubrelay/relay/internal/queue"
)

// sinkStatsInterval is how often what is only known by asking Redis is asked.
const sinkStatsInterval = 5 * time.Second

// sinkStats is what Redis knows of a sink.
type sinkStats struct {
	delivery.SinkStats
	// Queued is what waits in its queue.
	Queued int64
	// OldestAge is how long the oldest delivery has waited, in the queue or parked; zero where nothing waits.
	OldestAge time.Duration
}

// loadSinkStats returns what Redis knows of each sink, in their order.
func loadSinkStats(ctx context.Context, queues *queue.Store, store *delivery.Store, names []string) ([]sinkStats, error) {
	stats, err := queues.Stats(ctx, names)
	if err != nil {
		return nil, err
	}
	stored, err := store.Stats(ctx, names)
	if err != nil {
		return nil, err
	}
	list := make([]sinkStats, len(names))
	for i := range list {
		list[i] = sinkStats{
			SinkStats: stored[i], Queued: stats[i].Length, OldestAge: max(stats[i].OldestAge, stored[i].OldestRetryAge),
		}
	}
	return list, nil
}

// updateSinkStats keeps the metrics that describe Redis up to date until ctx ends.
func (a *App) updateSinkStats(ctx context.Context, queues *queue.Store, store *delivery.Store) error {
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
				continue // it has left meanwhile
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
