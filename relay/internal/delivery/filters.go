package delivery

import (
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/condition"
	"github.com/hubrelay/hubrelay/relay/internal/config"
	"github.com/hubrelay/hubrelay/relay/internal/metrics"
)

// newFilter returns the filter of a configured sink.
func newFilter(cfg config.Sink) (relay.Filter, error) {
	patterns, err := relay.ParsePatterns(cfg.Topics)
	if err != nil {
		return relay.Filter{}, err
	}
	when, err := condition.Compile(cfg.When)
	if err != nil {
		return relay.Filter{}, fmt.Errorf("when: %w", err)
	}
	return relay.Filter{
		Topics: patterns, Hubs: cfg.Hubs, Accounts: cfg.Accounts,
		Environments: cfg.Environments, Clusters: cfg.Clusters, Containers: cfg.Containers, When: when,
	}, nil
}

// failureLogInterval is the minimum time between log records about the condition of one sink.
const failureLogInterval = time.Minute

// monitorCondition wraps the condition of a sink, if it has one, to count and log its failures. The results do not
// change.
func monitorCondition(s *openSink, m *metrics.Metrics, log *slog.Logger) {
	if s.filter.When == nil {
		return
	}
	m.ConditionFailed(s.name, 0)
	w := &monitoredCondition{
		condition: s.filter.When, count: func() {
			m.ConditionFailed(s.name, 1)
		}, now: time.Now, log: log.With("sink", s.name),
	}
	s.filter.When = w.evaluate
}

// monitoredCondition counts the failures of a condition and logs them at most once a minute. It may be used
// concurrently.
type monitoredCondition struct {
	condition relay.Condition
	count     func()
	now       func() time.Time
	log       *slog.Logger

	mu         sync.Mutex
	next       time.Time // time of the next log record
	suppressed int       // failures without a log record
}

func (m *monitoredCondition) evaluate(e *relay.Envelope) (bool, error) {
	passes, err := m.condition(e)
	if err != nil {
		m.count()
		m.logFailure(e, err)
	}
	return passes, err
}

func (m *monitoredCondition) logFailure(e *relay.Envelope, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.suppressed++
	now := m.now()
	if now.Before(m.next) {
		return
	}
	m.log.Warn("condition failed, the sink receives the event",
		"error", err, "topic", e.Topic, "object_id", relay.Truncate(e.Object.ID, 80), "failure_count", m.suppressed)
	m.next, m.suppressed = now.Add(failureLogInterval), 0
}
