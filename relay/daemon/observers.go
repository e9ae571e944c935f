package daemon

import (
	"github.com/hubrelay/hubrelay/relay/internal/hub"
	"github.com/hubrelay/hubrelay/relay/internal/metrics"
)

// hubObserver counts the events of the hub.
type hubObserver struct{ *metrics.Metrics }

// Connected counts a new connection.
func (o hubObserver) Connected(compressed bool) {
	o.Metrics.Connected()
	if compressed {
		o.CompressionClients(1)
	}
}

// Disconnected counts a closed connection.
func (o hubObserver) Disconnected(e hub.CloseReason, compressed bool) {
	o.Metrics.Disconnected(string(e))
	if compressed {
		o.CompressionClients(-1)
	}
}

func (o hubObserver) Rejected(l hub.Limit) { o.Metrics.Rejected(string(l)) }

func (o hubObserver) Replayed(from hub.ReplaySource, n int) { o.Metrics.Replayed(string(from), n) }
func (o hubObserver) Resynced(cause hub.ResyncCause, n int) { o.Metrics.Resynced(string(cause), n) }

// dispatchObserver counts the events of dispatchers.
type dispatchObserver struct {
	*metrics.Metrics
	sinks *sinkRegistry
}

// Enqueued ignores sinks that were removed.
func (o dispatchObserver) Enqueued(sink string, n int) {
	if o.sinks.get(sink) != nil {
		o.Metrics.Enqueued(sink, n)
	}
}

// Dropped also counts in the statistics of the sink, which all nodes share.
func (o dispatchObserver) Dropped(sink string, n int64) {
	if s := o.sinks.get(sink); s != nil {
		o.Metrics.Dropped(sink, n)
		s.pipeline.CountDropped(n)
	}
}
