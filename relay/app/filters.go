package app

import (
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/admin"
	"github.com/hubrelay/hubrelay/relay/config"
	"github.com/hubrelay/hubrelay/relay/when"
)

// Filter is what a configured sink wants.
func Filter(cfg config.Sink) (relay.Filter, error) {
	patterns, err := relay.ParsePatterns(cfg.Topics)
	if err != nil {
		return relay.Filter{}, err
	}
	condition, err := when.Compile(cfg.When)
	if err != nil {
		return relay.Filter{}, fmt.Errorf("when: %w", err)
	}
	return relay.Filter{
		Topics: patterns, Hubs: cfg.Hubs, Accounts: cfg.Accounts,
		Environments: cfg.Environments, Clusters: cfg.Clusters, Containers: cfg.Containers, When: condition,
	}, nil
}

// failuresEvery is the pause between two lines in the log about the same sink's condition.
const failuresEvery = time.Minute

// watchCondition counts and logs what the condition of a sink, if it has one, has no answer to. Its answers stay the same.
func watchCondition(s *sink, metrics *admin.Metrics, log *slog.Logger) {
	if s.filter.When == nil {
		return
	}
	metrics.ConditionFailed(s.name, 0)
	w := &watched{
		condition: s.filter.When, count: func() { metrics.ConditionFailed(s.name, 1) }, now: time.Now, log: log.With("sink", s.name),
	}
	s.filter.When = w.ask
}

// watched is a condition whose failures are counted, and logged at most once a minute. It is safe for concurrent use.
type watched struct {
	condition relay.Condition
	count     func()
	now       func() time.Time
	log       *slog.Logger

	mu    sync.Mutex
	next  time.Time // before it nothing is logged
	since int       // failures that were not logged
}

func (w *watched) ask(e *relay.Envelope) (bool, error) {
	answer, err := w.condition(e)
	if err != nil {
		w.count()
		w.report(e, err)
	}
	return answer, err
}

func (w *watched) report(e *relay.Envelope, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.since++
	now := w.now()
	if now.Before(w.next) {
		return
	}
	w.log.Warn("the expression in when failed, so the sink gets the notification",
		"error", err, "topic", e.Topic, "object_id", relay.Clip(e.Object.ID, 80), "failures", w.since)
	w.next, w.since = now.Add(failuresEvery), 0
}
