package app

import (
	"context"
	"time"

	"github.com/hubrelay/hubrelay/relay/backbone"
	"github.com/hubrelay/hubrelay/relay/deliver"
)

// figuresEvery is how often what is only known by asking Redis is asked.
const figuresEvery = 5 * time.Second

// figures is what Redis knows of a sink.
type figures struct {
	deliver.Figures
	// Queued is what waits in its queue.
	Queued int64
	// Undelivered is how long the oldest delivery has waited, in the queue or parked; zero where nothing waits.
	Undelivered time.Duration
}

// figuresOf returns what Redis knows of each sink, in their order.
func figuresOf(ctx context.Context, b *backbone.Backbone, store *deliver.Store, names []string) ([]figures, error) {
	queues, err := b.Queues(ctx, names)
	if err != nil {
		return nil, err
	}
	stored, err := store.Figures(ctx, names)
	if err != nil {
		return nil, err
	}
	list := make([]figures, len(names))
	for i := range list {
		list[i] = figures{
			Figures: stored[i], Queued: queues[i].Length, Undelivered: max(queues[i].Oldest, stored[i].Oldest),
		}
	}
	return list, nil
}

// followFigures keeps the metrics that describe Redis up to date until ctx ends.
func (a *App) followFigures(ctx context.Context, b *backbone.Backbone, store *deliver.Store) error {
	tick := time.NewTicker(figuresEvery)
	defer tick.Stop()
	for {
		var names []string
		for _, s := range a.sinks.all() {
			names = append(names, s.name)
		}
		list, err := figuresOf(ctx, b, store, names)
		if ctx.Err() != nil {
			return nil
		}
		a.metrics.RedisUp(err == nil)
		for i, f := range list {
			if a.sinks.named(names[i]) == nil {
				continue // it has left meanwhile
			}
			a.metrics.Backlog(names[i], f.Queued+f.Gathering, f.Parked, f.Dead)
			a.metrics.Oldest(names[i], f.Undelivered)
			a.metrics.LastSuccess(names[i], f.LastSuccess)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}
