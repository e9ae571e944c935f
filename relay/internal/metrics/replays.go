package metrics

import "github.com/prometheus/client_golang/prometheus"

// replayMetrics are metrics of clients that resume with a cursor or may have lost notifications.
type replayMetrics struct {
	running  prometheus.Gauge
	started  prometheus.Counter
	ended    *prometheus.CounterVec
	replayed *prometheus.CounterVec
	resyncs  *prometheus.CounterVec
}

const (
	endedCaughtUp     = "caught_up"
	endedDisconnected = "disconnected"
)

func newReplayMetrics(registry *prometheus.Registry) replayMetrics {
	r := replayMetrics{
		running: gauge("stream_replays", "Clients that receive events that they missed."),
		started: counter("stream_replays_started_total", "Clients that resumed with a cursor."),
		ended: counters("stream_replays_ended_total", "Ended replays, by reason: the client caught up or disconnected.",
			"reason"),
		replayed: counters("stream_replayed_total", "Events that were replayed to clients, from this node's memory or from the log.",
			"from"),
		resyncs: counters(
			"stream_resyncs_total",
			"Clients that received a resync message because their cursor was trimmed, the log lost entries, or "+
				"events of a source are missing.",
			"reason",
		),
	}
	registry.MustRegister(r.running, r.started, r.ended, r.replayed, r.resyncs)
	for v, labels := range map[*prometheus.CounterVec][]string{ // shown at zero
		r.ended: {
			endedCaughtUp, endedDisconnected,
		}, r.replayed: {"memory", "log"}, r.resyncs: {"cursor", "log", "source"},
	} {
		for _, label := range labels {
			v.WithLabelValues(label)
		}
	}
	return r
}

// ReplayStarted counts a client that resumed with a cursor.
func (m *Metrics) ReplayStarted() {
	m.replays.running.Inc()
	m.replays.started.Inc()
}

// ReplayEnded counts a replay that has caught up, or whose client disconnected.
func (m *Metrics) ReplayEnded(caughtUp bool) {
	reason := endedDisconnected
	if caughtUp {
		reason = endedCaughtUp
	}
	m.replays.running.Dec()
	m.replays.ended.WithLabelValues(reason).Inc()
}

// Replayed counts replayed notifications by their origin.
func (m *Metrics) Replayed(from string, n int) {
	m.replays.replayed.WithLabelValues(from).Add(float64(n))
}

// Resynced counts clients that received a resync message, by reason.
func (m *Metrics) Resynced(reason string, n int) {
	m.replays.resyncs.WithLabelValues(reason).Add(float64(n))
}
