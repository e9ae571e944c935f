package daemon

import (
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/adminserver"
	"github.com/hubrelay/hubrelay/relay/internal/condition"
	"github.com/hubrelay/hubrelay/relay/internal/config"
)

// newFilter is what a configured sink wants.
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

// failureLogInterval is the pause between two lines in the log about the same sink's condition.
const failureLogInterval = time.Minute

// monitorCondition counts and logs what the condition of a sink, if it has one, has no answer to. Its answers stay the same.
func monitorCondition(s *openSink, metrics *adminserver.Metrics, log *slog.Logger) {
	if s.filter.When == nil {
		return
	}
	metrics.ConditionFailed(s.name, 0)
	w := &monitoredCondition{
		condition: s.filter.When, count: func() { metrics.ConditionFailed(s.name, 1) }, now: time.Now, log: log.With("sink", s.name),
	}
	s.filter.When = w.evaluate
}

// monitoredCondition is a condition whose failures are counted, and logged at most once a minute. It is safe for concurrent use.
type monitoredCondition struct {
	condition relay.Condition
	count     func()
	now       func() time.Time
	log       *slog.Logger

	mu         sync.Mutex
	next       time.Time // before it nothing is logged
	suppressed int       // failures that were not logged
}

func (w *monitoredCondition) evaluate(e *relay.Envelope) (bool, error) {
	answer, err := w.condition(e)
	if err != nil {
		w.count()
		w.logFailure(e, err)
	}
	return answer, err
}

func (w *monitoredCondition) logFailure(e *relay.Envelope, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.suppressed++
	now := w.now()
	if now.Before(w.next) {
		return
	}
	w.log.Warn("the expression in when failed, so the sink gets the notification",
		"error", err, "topic", e.Topic, "object_id", relay.Truncate(e.Object.ID, 80), "failures", w.suppressed)
	w.next, w.suppressed = now.Add(failureLogInterval), 0
}
