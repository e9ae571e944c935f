package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/hubrelay/hubrelay/relay/internal/source/sourcestore"
)

// sourceMetrics are metrics of the upstreams.
type sourceMetrics struct {
	connected *prometheus.GaugeVec
	messages  *prometheus.CounterVec
	gaps      *prometheus.CounterVec
	failures  *prometheus.CounterVec
	last      *prometheus.GaugeVec
}

func newSourceMetrics(registry *prometheus.Registry) sourceMetrics {
	s := sourceMetrics{
		connected: gauges("source_connected",
			"1 while this node reads the upstream, otherwise 0. The sum over all nodes should be 1.", "source"),
		messages: counters(
			"source_messages_total",
			"Messages from an upstream on this node, by result: stored, quarantined, or returned (discarded "+
				"because of a loop).",
			"source", "result",
		),
		gaps: counters("source_gaps_total", "Possible gaps in the events of an upstream.", "source"),
		failures: counters("source_failures_total",
			"Closed connections and failed attempts to connect to an upstream.", "source"),
		last: gauges("source_last_event_timestamp_seconds",
			"Time of the last event of the upstream that this node stored; 0 for never.", "source"),
	}
	registry.MustRegister(s.connected, s.messages, s.gaps, s.failures, s.last)
	return s
}

// InitSource creates all time series of a source with the value zero.
func (m *Metrics) InitSource(source string) {
	m.SourceConnected(source, false)
	m.SourceStored(source, sourcestore.Batch{})
	m.sources.failures.WithLabelValues(source)
	m.sources.last.WithLabelValues(source)
}

// RemoveSource removes all time series of a source that was removed from the configuration.
func (m *Metrics) RemoveSource(source string) {
	labels := prometheus.Labels{"source": source}
	m.sources.connected.DeletePartialMatch(labels)
	m.sources.messages.DeletePartialMatch(labels)
	m.sources.gaps.DeletePartialMatch(labels)
	m.sources.failures.DeletePartialMatch(labels)
	m.sources.last.DeletePartialMatch(labels)
}

// SourceConnected sets whether this node reads the upstream.
func (m *Metrics) SourceConnected(source string, connected bool) {
	m.sources.connected.WithLabelValues(source).Set(boolToFloat(connected))
}

// SourceFailed counts a closed connection or a failed attempt to connect.
func (m *Metrics) SourceFailed(source string) { m.sources.failures.WithLabelValues(source).Inc() }

// SourceStored counts the notifications of a stored batch.
func (m *Metrics) SourceStored(source string, b sourcestore.Batch) {
	for _, c := range []struct {
		result string
		n      int
	}{{"stored", b.Stored()}, {"quarantined", len(b.Rejected)}, {"returned", b.Returned}} {
		m.sources.messages.WithLabelValues(source, c.result).Add(float64(c.n))
	}
	m.sources.gaps.WithLabelValues(source).Add(float64(b.Gaps))
	if b.Stored() > 0 {
		m.sources.last.WithLabelValues(source).SetToCurrentTime()
	}
}
