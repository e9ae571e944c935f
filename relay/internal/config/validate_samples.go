package config

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hubrelay/hubrelay/internal/samples"
	"github.com/hubrelay/hubrelay/relay"
)

// sampleTimeout limits the time to validate samples of all sinks together. A reload, and changes of API keys with
// it, waits for this.
const sampleTimeout = 10 * time.Second

// sampleBudget tracks the time spent on samples.
type sampleBudget struct {
	deadline    time.Time
	slowest     string // path of a sink
	slowestTime time.Duration
	skipped     []string // paths of sinks whose validation did not finish
}

// checkSamples lets a sink render typical deliveries.
func (l *loader) checkSamples(path string, s Sink, catalog *relay.Catalog) {
	if catalog == nil {
		return
	}
	start := time.Now()
	if l.sampleBudget.deadline.IsZero() {
		l.sampleBudget.deadline = start.Add(sampleTimeout)
	}
	// A sink gets at most half of the remaining time, so a slow one leaves time for the others.
	ctx, cancel := context.WithTimeout(context.Background(), l.sampleBudget.deadline.Sub(start)/2)
	defer cancel()
	rendered := false
	report := s.Settings.Check(ctx, relay.CheckEnv{
		Name: strings.TrimPrefix(path, "sinks."), Dir: l.dir,
		Samples: func() []relay.Delivery {
			list := Samples(s, l.kinds[s.Type], catalog)
			rendered = len(list) > 0
			return list
		},
	})
	if !rendered {
		return
	}
	if elapsed := time.Since(start); elapsed > l.sampleBudget.slowestTime {
		l.sampleBudget.slowest, l.sampleBudget.slowestTime = path, elapsed
	}
	l.addErrors(path, report.Errors)
	if len(report.Errors) == 0 && ctx.Err() != nil {
		l.sampleBudget.skipped = append(l.sampleBudget.skipped, path)
	}
}

// warnSkippedSamples names the sinks whose validation did not finish.
func (l *loader) warnSkippedSamples() {
	for _, path := range l.sampleBudget.skipped {
		l.Warn(path, fmt.Sprintf("its templates were not tried with all samples: the time limit for all sinks is %s",
			sampleTimeout),
			"simplify the templates of "+l.sampleBudget.slowest+", which took the longest")
	}
}

// Samples returns one delivery of each kind that a sink may receive: one for each matching topic, in a batch or a
// digest if configured. The result is empty if no topic matches.
func Samples(s Sink, kind relay.SinkKind, catalog *relay.Catalog) []relay.Delivery {
	patterns, err := relay.ParsePatterns(s.Topics)
	if err != nil {
		return nil
	}
	var topics []string
	for _, t := range relay.OperationalTopics() {
		topics = append(topics, t.Name)
	}
	topics = slices.DeleteFunc(append(topics, catalog.Names()...), func(topic string) bool {
		return !patterns.Match(topic)
	})
	if len(topics) == 0 {
		return nil
	}
	var list []relay.Delivery
	switch {
	case s.Batch.Wait > 0:
		list = append(list, samples.Batch(topics))
	case s.Digest.Wait == 0:
		list = samples.Deliveries(topics)
	}
	if s.Digest.Wait > 0 || kind.DigestOverRate && s.Ordering == "none" {
		list = append(list, samples.Digest(topics))
	}
	return list
}
