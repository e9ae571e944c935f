package app

import (
	"context"

	"github.com/hubrelay/hubrelay/relay/admin"
	"github.com/hubrelay/hubrelay/relay/backbone"
	"github.com/hubrelay/hubrelay/relay/hub"
)

// countedLog counts what it stores.
type countedLog struct {
	*backbone.Backbone
	metrics *admin.Metrics
}

func (l countedLog) Append(ctx context.Context, a backbone.Append) ([]string, error) {
	ids, err := l.Backbone.Append(ctx, a)
	if err != nil {
		return nil, err
	}
	// A repeat answers with the ids of the first time and stores nothing.
	if len(ids) > 0 && ids[0] == a.Notifications[0].ID {
		for i := range a.Notifications {
			l.metrics.Accepted(a.Notifications[i].Topic)
		}
	}
	return ids, nil
}

// hubObserver counts what the hub reports.
type hubObserver struct{ *admin.Metrics }

// Connected counts.
func (o hubObserver) Connected(compressed bool) {
	o.Metrics.Connected()
	if compressed {
		o.Negotiated(1)
	}
}

// Disconnected counts.
func (o hubObserver) Disconnected(e hub.Ending, compressed bool) {
	o.Metrics.Disconnected(string(e))
	if compressed {
		o.Negotiated(-1)
	}
}

func (o hubObserver) TurnedAway(l hub.Limit) { o.Metrics.TurnedAway(string(l)) }

func (o hubObserver) Replayed(from hub.Source, n int) { o.Metrics.Replayed(string(from), n) }
func (o hubObserver) Resynced(why hub.Cause, n int)   { o.Metrics.Resynced(string(why), n) }

// dispatchObserver counts what dispatchers report.
type dispatchObserver struct {
	*admin.Metrics
	sinks *roster
}

// Enqueued leaves out a sink that has left meanwhile.
func (o dispatchObserver) Enqueued(sink string, n int) {
	if o.sinks.named(sink) != nil {
		o.Metrics.Enqueued(sink, n)
	}
}

// Dropped counts in the sink's own figures too, which all nodes and operators see.
func (o dispatchObserver) Dropped(sink string, n int64) {
	if s := o.sinks.named(sink); s != nil {
		o.Metrics.Dropped(sink, n)
		s.pipeline.Dropped(n)
	}
}
