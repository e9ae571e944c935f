package daemon

import (
	"context"

	"github.com/hubrelay/hubrelay/relay/internal/adminserver"
	"github.com/hubrelay/hubrelay/relay/internal/eventlog"
	"github.com/hubrelay/hubrelay/relay/internal/hub"
)

// meteredLog counts what it stores.
type meteredLog struct {
	*eventlog.Log
	metrics *adminserver.Metrics
}

func (l meteredLog) Append(ctx context.Context, a eventlog.AppendRequest) ([]string, error) {
	ids, err := l.Log.Append(ctx, a)
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
type hubObserver struct{ *adminserver.Metrics }

// Connected counts.
func (o hubObserver) Connected(compressed bool) {
	o.Metrics.Connected()
	if compressed {
		o.CompressionClients(1)
	}
}

// Disconnected counts.
func (o hubObserver) Disconnected(e hub.CloseReason, compressed bool) {
	o.Metrics.Disconnected(string(e))
	if compressed {
		o.CompressionClients(-1)
	}
}

func (o hubObserver) Rejected(l hub.Limit) { o.Metrics.Rejected(string(l)) }

func (o hubObserver) Replayed(from hub.ReplaySource, n int) { o.Metrics.Replayed(string(from), n) }
func (o hubObserver) Resynced(why hub.ResyncCause, n int)   { o.Metrics.Resynced(string(why), n) }

// dispatchObserver counts what dispatchers report.
type dispatchObserver struct {
	*adminserver.Metrics
	sinks *sinkRegistry
}

// Enqueued leaves out a sink that has left meanwhile.
func (o dispatchObserver) Enqueued(sink string, n int) {
	if o.sinks.get(sink) != nil {
		o.Metrics.Enqueued(sink, n)
	}
}

// Dropped counts in the sink's own figures too, which all nodes and operators see.
func (o dispatchObserver) Dropped(sink string, n int64) {
	if s := o.sinks.get(sink); s != nil {
		o.Metrics.Dropped(sink, n)
		s.pipeline.Dropped(n)
	}
}
