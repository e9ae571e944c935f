package admin

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/deliver"
)

// Expect shows every figure of a sink at zero before anything happens to it: a line that begins with its first event
// hides that event from rate().
func (m *Metrics) Expect(sink string) {
	m.Enqueued(sink, 0)
	m.Dropped(sink, 0)
	for _, outcome := range []relay.Outcome{
		relay.OutcomeDelivered, relay.OutcomeRetry, relay.OutcomePermanent, relay.OutcomeGone,
	} {
		m.attempts.WithLabelValues(sink, outcome.String())
	}
	for _, reason := range deliver.FailureReasons() {
		m.failures.WithLabelValues(sink, reason)
	}
	for _, reason := range []string{deliver.ReasonPermanent, deliver.ReasonExhausted, deliver.ReasonUnreadable} {
		m.dead.WithLabelValues(sink, reason)
	}
	m.retries.WithLabelValues(sink)
	m.parked.WithLabelValues(sink)
	m.lost.WithLabelValues(sink)
	m.notices.WithLabelValues(sink)
	m.DeadLettersDropped(sink, 0)
	m.Disabled(sink, false)
	m.Paused(sink, false)
	m.Broken(sink, false)
	m.Held(sink, false)
	m.Backlog(sink, 0, 0, 0)
	m.Oldest(sink, 0)
	m.LastSuccess(sink, time.Time{})
	m.InFlight(sink, func() int64 { return 0 })
}

// inFlight asks, at each scrape, how many attempts every sink has running.
type inFlight struct {
	desc *prometheus.Desc

	mu    sync.Mutex
	sinks map[string]func() int64
}

func newInFlight() *inFlight {
	return &inFlight{
		desc:  prometheus.NewDesc(namespace+"_sink_in_flight", "Attempts to deliver that this node is making.", []string{"sink"}, nil),
		sinks: make(map[string]func() int64),
	}
}

// InFlight lets ask, which must not block, say how many attempts a sink has running on this node.
func (m *Metrics) InFlight(sink string, ask func() int64) {
	m.inFlight.mu.Lock()
	defer m.inFlight.mu.Unlock()
	m.inFlight.sinks[sink] = ask
}

// Describe is Prometheus' business.
func (f *inFlight) Describe(to chan<- *prometheus.Desc) { to <- f.desc }

// Collect is Prometheus' business.
func (f *inFlight) Collect(to chan<- prometheus.Metric) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for sink, ask := range f.sinks {
		to <- prometheus.MustNewConstMetric(f.desc, prometheus.GaugeValue, float64(ask()), sink)
	}
}
