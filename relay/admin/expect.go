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
	m.Batched(sink, 0)
	m.DeadLettersDropped(sink, 0)
	m.Disabled(sink, false)
	m.Paused(sink, false)
	m.Broken(sink, false)
	m.Held(sink, false)
	m.Backlog(sink, 0, 0, 0)
	m.Oldest(sink, 0)
	m.LastSuccess(sink, time.Time{})
	m.InFlight(sink, func() int64 { return 0 })
	m.Ailing(sink, func() bool { return false })
}

// Forget shows no figure of a sink any more, which has left the configuration.
func (m *Metrics) Forget(sink string) {
	of := prometheus.Labels{"sink": sink}
	for _, v := range []interface {
		DeletePartialMatch(of prometheus.Labels) int
	}{
		m.enqueued, m.dropped, m.attempts, m.failures, m.retries, m.parked, m.batched, m.dead, m.deadDropped, m.notices, m.lost,
		m.disabled, m.paused, m.broken, m.events, m.held, m.backlog, m.waiting, m.letters, m.oldest, m.lastSuccess, m.conditions,
	} {
		v.DeletePartialMatch(of)
	}
	m.inFlight.set(sink, nil)
	m.failed.set(sink, nil)
}

// asked is a figure of every sink that is asked for at each scrape.
type asked struct {
	desc *prometheus.Desc

	mu    sync.Mutex
	sinks map[string]func() float64
}

func newAsked(name, help string) *asked {
	return &asked{
		desc:  prometheus.NewDesc(namespace+"_"+name, help, []string{"sink"}, nil),
		sinks: make(map[string]func() float64),
	}
}

// set replaces what was asked before; nil ends it.
func (a *asked) set(sink string, ask func() float64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if ask == nil {
		delete(a.sinks, sink)
		return
	}
	a.sinks[sink] = ask
}

// InFlight lets ask, which must not block, say how many attempts a sink has running on this node.
func (m *Metrics) InFlight(sink string, ask func() int64) {
	m.inFlight.set(sink, func() float64 { return float64(ask()) })
}

// Ailing lets ask, which must not block, say whether this node can deliver nothing to a sink that nobody has stopped.
func (m *Metrics) Ailing(sink string, ask func() bool) {
	m.failed.set(sink, func() float64 { return number(ask()) })
}

// Describe is Prometheus' business.
func (a *asked) Describe(to chan<- *prometheus.Desc) { to <- a.desc }

// Collect is Prometheus' business.
func (a *asked) Collect(to chan<- prometheus.Metric) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for sink, ask := range a.sinks {
		to <- prometheus.MustNewConstMetric(a.desc, prometheus.GaugeValue, ask(), sink)
	}
}
