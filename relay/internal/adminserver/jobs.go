package adminserver

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hubrelay/hubrelay/relay"
)

// jobMetrics are metrics of migrations.
type jobMetrics struct {
	duration *prometheus.HistogramVec
	held     prometheus.Gauge
	events   *prometheus.CounterVec
}

func newJobMetrics(registry *prometheus.Registry) jobMetrics {
	j := jobMetrics{
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: namespace, Name: "job_seconds",
			Help: "Time from the request to the end of a migration on this node, by final state (completed, " +
				"error, expired).",
			Buckets: []float64{.1, .5, 1, 5, 15, 60, 300, 900, 3600, 4 * 3600, 24 * 3600},
		}, []string{"state"}),
		held: gauge("jobs_in_hand", "Migrations that run on this node or wait here for server slots."),
		events: counters(
			"driver_events_total",
			"Events of the process of the migration driver: started, not_started, exited, hung, killed, gave_up, "+
				"output_cut.",
			"event",
		),
	}
	for _, state := range []relay.JobState{relay.JobCompleted, relay.JobError, relay.JobExpired} {
		j.duration.WithLabelValues(string(state))
	}
	registry.MustRegister(j.duration, j.held, j.events)
	return j
}

// JobEnded counts a migration that this node has ended. duration is the time since the request.
func (m *Metrics) JobEnded(state relay.JobState, duration time.Duration) {
	m.jobs.duration.WithLabelValues(string(state)).Observe(duration.Seconds())
}

// JobsHeld sets the number of migrations of this node.
func (m *Metrics) JobsHeld(n int) { m.jobs.held.Set(float64(n)) }

// DriverEvent counts an event of the driver's process.
func (m *Metrics) DriverEvent(event string) { m.jobs.events.WithLabelValues(event).Inc() }
