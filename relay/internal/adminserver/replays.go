package adminserver

import "github.com/prometheus/client_golang/prometheus"

// replayMetrics are about clients of the stream that come back, or may have missed something.
type replayMetrics struct {
	running  prometheus.Gauge
	started  prometheus.Counter
	ended    *prometheus.CounterVec
	replayed *prometheus.CounterVec
	resyncs  *prometheus.CounterVec
}

const (
	endedCaughtUp     = "caught_up"
	endedDisconnected = "gone"
)

func newReplayMetrics(registry *prometheus.Registry) replayMetrics {
	r := replayMetrics{
		running:  gauge("stream_replays", "Clients of the stream that are being given what they missed now."),
		started:  counter("stream_replays_started_total", "Clients of the stream that came back with a cursor."),
		ended:    counters("stream_replays_ended_total", "Those that have caught up, or were gone before.", "reason"),
		replayed: counters("stream_replayed_total", "Notifications given to clients that came back: from this node's memory, or read from the log.", "from"),
		resyncs:  counters("stream_resyncs_total", "Clients that were told to look at how things are: something behind their cursor has left the log, the log itself has lost something, or something of a source is missing.", "cause"),
	}
	registry.MustRegister(r.running, r.started, r.ended, r.replayed, r.resyncs)
	for v, labels := range map[*prometheus.CounterVec][]string{ // shown at zero
		r.ended: {endedCaughtUp, endedDisconnected}, r.replayed: {"memory", "log"}, r.resyncs: {"cursor", "log", "source"},
	} {
		for _, label := range labels {
			v.WithLabelValues(label)
		}
	}
	return r
}

// ReplayStarted counts a client of the stream that came back with a cursor.
func (m *Metrics) ReplayStarted() {
	m.replays.running.Inc()
	m.replays.started.Inc()
}

// ReplayEnded counts one of them that has caught up, or was gone before.
func (m *Metrics) ReplayEnded(caughtUp bool) {
	reason := endedDisconnected
	if caughtUp {
		reason = endedCaughtUp
	}
	m.replays.running.Dec()
	m.replays.ended.WithLabelValues(reason).Inc()
}

// Replayed counts notifications given to clients that came back, by where they were from.
func (m *Metrics) Replayed(from string, n int) {
	m.replays.replayed.WithLabelValues(from).Add(float64(n))
}

// Resynced counts clients that were told that they may have missed something, by the cause.
func (m *Metrics) Resynced(cause string, n int) {
	m.replays.resyncs.WithLabelValues(cause).Add(float64(n))
}
