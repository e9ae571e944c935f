package app

import (
	"context"
	"time"

	"github.com/hubrelay/hubrelay/relay/backbone"
	"github.com/hubrelay/hubrelay/relay/deliver"
)

// figuresEvery is how often what is only known by asking Redis is asked.
const figuresEvery = 5 * time.Second

// followFigures keeps the metrics that describe Redis up to date until ctx ends.
func (a *App) followFigures(ctx context.Context, b *backbone.Backbone, store *deliver.Store) error {
	names := make([]string, len(a.sinks))
	for i, s := range a.sinks {
		names[i] = s.name
	}
	tick := time.NewTicker(figuresEvery)
	defer tick.Stop()
	for {
		queued, err := b.QueueLengths(ctx, names)
		figures, figuresErr := store.Figures(ctx, names)
		if ctx.Err() != nil {
			return nil
		}
		up := err == nil && figuresErr == nil
		a.metrics.RedisUp(up)
		if up {
			for i, name := range names {
				a.metrics.Backlog(name, queued[i], figures[i].Parked, figures[i].Dead)
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}
