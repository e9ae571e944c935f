package app

import (
	"context"
	"time"

	"github.com/hubrelay/hubrelay/relay/backbone"
)

// figuresEvery is how often what is only known by asking Redis is asked.
const figuresEvery = 5 * time.Second

// followFigures keeps the metrics that describe Redis up to date until ctx ends.
func (a *App) followFigures(ctx context.Context, b *backbone.Backbone) error {
	names := make([]string, len(a.sinks))
	for i, s := range a.sinks {
		names[i] = s.name
	}
	tick := time.NewTicker(figuresEvery)
	defer tick.Stop()
	for {
		lengths, err := b.QueueLengths(ctx, names)
		if ctx.Err() != nil {
			return nil
		}
		a.metrics.RedisUp(err == nil)
		for i, n := range lengths {
			a.metrics.Backlog(names[i], n)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}
