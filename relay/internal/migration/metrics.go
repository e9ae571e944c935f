package migration

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hubrelay/hubrelay/relay"
)

// metrics are the metrics of migrations on this node. They implement [Observer].
type metrics struct {
	duration     *prometheus.HistogramVec
	held         prometheus.Gauge
	driverEvents *prometheus.CounterVec
}

var _ Observer = (*metrics)(nil)

func newMetrics(registry prometheus.Registerer) *metrics {
	const namespace = "hubrelay"
	m := &metrics{
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: namespace, Name: "job_duration_seconds",
			Help: "Time from the request to the end of a migration on this node, by final state (completed, " +
				"error, expired).",
			Buckets: []float64{.1, .5, 1, 5, 15, 60, 300, 900, 3600, 4 * 3600, 24 * 3600},
		}, []string{"state"}),
		held: prometheus.NewGauge(prometheus.GaugeOpts{
			Namespace: namespace, Name: "jobs_running",
			Help: "Migrations that run on this node or wait here for server slots.",
		}),
		driverEvents: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: namespace, Name: "driver_events_total",
			Help: "Events of the process of the migration driver: started, not_started, exited, hung, killed, " +
				"gave_up, output_cut.",
		}, []string{"event"}),
	}
	for _, state := range []relay.JobState{relay.JobCompleted, relay.JobError, relay.JobExpired} {
		m.duration.WithLabelValues(string(state))
	}
	registry.MustRegister(m.duration, m.held, m.driverEvents)
	return m
}

func (m *metrics) JobEnded(state relay.JobState, duration time.Duration) {
	m.duration.WithLabelValues(string(state)).Observe(duration.Seconds())
}

func (m *metrics) JobsHeld(n int) { m.held.Set(float64(n)) }

func (m *metrics) countDriverEvent(event string) { m.driverEvents.WithLabelValues(event).Inc() }
