package admin

import (
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
	m.DeadLettersDropped(sink, 0)
	m.Disabled(sink, false)
	m.Paused(sink, false)
	m.Broken(sink, false)
	m.Backlog(sink, 0, 0, 0)
}
