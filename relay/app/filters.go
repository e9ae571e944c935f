package app

import (
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hubrelay/hubrelay/relay"
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

// watchConditions counts and logs what the conditions of sinks have no answer to. Their answers stay the same.
func watchConditions(sinks []*sink, registry prometheus.Registerer, log *slog.Logger) error {
	counter := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "hubrelay_sink_when_failures_total",
		Help: "Notifications that a sink got because the expression in its when failed.",
	}, []string{"sink"})
	if err := registry.Register(counter); err != nil {
		return fmt.Errorf("register the failures of conditions: %w", err)
	}
	for _, s := range sinks {
		if s.filter.When != nil {
			w := &watched{
				condition: s.filter.When, count: counter.WithLabelValues(s.name), now: time.Now,
				log: log.With("sink", s.name),
			}
			s.filter.When = w.ask
		}
	}
	return nil
}

// watched is a condition whose failures are counted, and logged at most once a minute. It is safe for concurrent use.
type watched struct {
	condition relay.Condition
	count     prometheus.Counter
	now       func() time.Time
	log       *slog.Logger

	mu    sync.Mutex
	next  time.Time // before it nothing is logged
	since int       // failures that were not logged
}

func (w *watched) ask(e *relay.Envelope) (bool, error) {
	answer, err := w.condition(e)
	if err != nil {
		w.count.Inc()
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
