package adminserver

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/delivery"
)

// InitSink shows every figure of a sink at zero before anything happens to it: a line that begins with its first event
// hides that event from rate().
func (m *Metrics) InitSink(sink string) {
	m.Enqueued(sink, 0)
	m.Dropped(sink, 0)
	for _, outcome := range []relay.Outcome{
		relay.OutcomeDelivered, relay.OutcomeRetry, relay.OutcomePermanent, relay.OutcomeGone,
	} {
		m.attempts.WithLabelValues(sink, outcome.String())
	}
	for _, reason := range delivery.FailureReasons() {
		m.failures.WithLabelValues(sink, reason)
	}
	for _, reason := range []string{delivery.ReasonPermanent, delivery.ReasonExhausted, delivery.ReasonUnreadable} {
		m.deadLettered.WithLabelValues(sink, reason)
	}
	m.retries.WithLabelValues(sink)
	m.parked.WithLabelValues(sink)
	m.retriesLost.WithLabelValues(sink)
	m.noticesDropped.WithLabelValues(sink)
	m.Batched(sink, 0)
	m.DeadLettersDropped(sink, 0)
	m.Disabled(sink, false)
	m.Paused(sink, false)
	m.CircuitChanged(sink, false)
	m.Throttled(sink, false)
	m.Backlog(sink, 0, 0, 0)
	m.Oldest(sink, 0)
	m.LastSuccess(sink, time.Time{})
	m.SetInFlightFunc(sink, func() int64 { return 0 })
	m.SetUnhealthyFunc(sink, func() bool { return false })
}

// RemoveSink shows no figure of a sink any more, which has left the configuration.
func (m *Metrics) RemoveSink(sink string) {
	of := prometheus.Labels{"sink": sink}
	for _, v := range []interface {
		DeletePartialMatch(of prometheus.Labels) int
	}{
		m.enqueued, m.dropped, m.attempts, m.failures, m.retries, m.parked, m.batched, m.deadLettered, m.deadDropped, m.noticesDropped, m.retriesLost,
		m.disabled, m.paused, m.circuitOpen, m.events, m.throttled, m.backlog, m.pendingRetries, m.deadLetters, m.oldest, m.lastSuccess, m.conditionFailures,
	} {
		v.DeletePartialMatch(of)
	}
	m.inFlight.setFunc(sink, nil)
	m.failed.setFunc(sink, nil)
}

// gaugeFuncs is a figure of every sink that is asked for at each scrape.
type gaugeFuncs struct {
	desc *prometheus.Desc

	mu    sync.Mutex
	sinks map[string]func() float64
}

func newGaugeFuncs(name, help string) *gaugeFuncs {
	return &gaugeFuncs{
		desc:  prometheus.NewDesc(namespace+"_"+name, help, []string{"sink"}, nil),
		sinks: make(map[string]func() float64),
	}
}

// setFunc replaces what was asked before; nil ends it.
func (a *gaugeFuncs) setFunc(sink string, ask func() float64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if ask == nil {
		delete(a.sinks, sink)
		return
	}
	a.sinks[sink] = ask
}

// SetInFlightFunc lets ask, which must not block, say how many attempts a sink has running on this node.
func (m *Metrics) SetInFlightFunc(sink string, ask func() int64) {
	m.inFlight.setFunc(sink, func() float64 { return float64(ask()) })
}

// SetUnhealthyFunc lets ask, which must not block, say whether this node can deliver nothing to a sink that nobody has stopped.
func (m *Metrics) SetUnhealthyFunc(sink string, ask func() bool) {
	m.failed.setFunc(sink, func() float64 { return boolToFloat(ask()) })
}

// Describe is Prometheus' business.
func (a *gaugeFuncs) Describe(to chan<- *prometheus.Desc) { to <- a.desc }

// Collect is Prometheus' business.
func (a *gaugeFuncs) Collect(to chan<- prometheus.Metric) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for sink, ask := range a.sinks {
		to <- prometheus.MustNewConstMetric(a.desc, prometheus.GaugeValue, ask(), sink)
	}
}
