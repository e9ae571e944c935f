package adminserver

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/delivery"
	"github.com/hubrelay/hubrelay/relay/internal/delivery/attempt"
)

// InitSink creates all time series of a sink with the value zero. A series that starts with its first event hides
// this event from rate().
func (m *Metrics) InitSink(sink string) {
	m.Enqueued(sink, 0)
	m.Dropped(sink, 0)
	for _, outcome := range []relay.Outcome{
		relay.OutcomeDelivered, relay.OutcomeRetry, relay.OutcomePermanent, relay.OutcomeGone,
	} {
		m.attempts.WithLabelValues(sink, outcome.String())
	}
	for _, reason := range attempt.FailureReasons() {
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

// RemoveSink removes all time series of a sink that was removed from the configuration.
func (m *Metrics) RemoveSink(sink string) {
	labels := prometheus.Labels{"sink": sink}
	for _, v := range []interface {
		DeletePartialMatch(labels prometheus.Labels) int
	}{
		m.enqueued, m.dropped, m.attempts, m.failures, m.retries, m.parked, m.batched, m.deadLettered, m.deadDropped,
		m.noticesDropped, m.retriesLost,
		m.disabled, m.paused, m.circuitOpen, m.events, m.throttled, m.backlog, m.pendingRetries, m.deadLetters,
		m.oldest, m.lastSuccess, m.conditionFailures,
	} {
		v.DeletePartialMatch(labels)
	}
	m.inFlight.setFunc(sink, nil)
	m.failed.setFunc(sink, nil)
}

// gaugeFuncs is a gauge per sink that is evaluated at each scrape.
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

// setFunc sets the function of a sink. Nil removes the sink.
func (a *gaugeFuncs) setFunc(sink string, get func() float64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if get == nil {
		delete(a.sinks, sink)
		return
	}
	a.sinks[sink] = get
}

// SetInFlightFunc sets the function that returns the number of running attempts of a sink on this node. It must
// not block.
func (m *Metrics) SetInFlightFunc(sink string, get func() int64) {
	m.inFlight.setFunc(sink, func() float64 { return float64(get()) })
}

// SetUnhealthyFunc sets the function that reports whether this node cannot deliver to an active sink. It must not
// block.
func (m *Metrics) SetUnhealthyFunc(sink string, get func() bool) {
	m.failed.setFunc(sink, func() float64 { return boolToFloat(get()) })
}

// Describe implements [prometheus.Collector].
func (a *gaugeFuncs) Describe(ch chan<- *prometheus.Desc) { ch <- a.desc }

// Collect implements [prometheus.Collector].
func (a *gaugeFuncs) Collect(ch chan<- prometheus.Metric) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for sink, get := range a.sinks {
		ch <- prometheus.MustNewConstMetric(a.desc, prometheus.GaugeValue, get(), sink)
	}
}
