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

// sampleTimeout bounds how long all sinks together try samples while a configuration is read, which API keys wait for.
const sampleTimeout = 10 * time.Second

// sampleBudget is the time that sinks take to try samples.
type sampleBudget struct {
	deadline    time.Time
	slowest     string // the path of a sink
	slowestTime time.Duration
	skipped     []string // the paths of those that had too little time
}

// validateSamples lets a kind that can try samples of what the sink would get.
func (l *loader) validateSamples(path string, s Sink, catalog *relay.Catalog) {
	r, ok := s.Settings.(relay.SampleValidator)
	if !ok || catalog == nil {
		return
	}
	list := Samples(s, l.kinds[s.Type], catalog)
	if len(list) == 0 {
		return
	}
	began := time.Now()
	if l.sampleBudget.deadline.IsZero() {
		l.sampleBudget.deadline = began.Add(sampleTimeout)
	}
	// Nobody takes more than half of what is left, so that a slow one leaves time for the next.
	ctx, cancel := context.WithTimeout(context.Background(), l.sampleBudget.deadline.Sub(began)/2)
	defer cancel()
	err := r.ValidateSamples(ctx, strings.TrimPrefix(path, "sinks."), list)
	if took := time.Since(began); took > l.sampleBudget.slowestTime {
		l.sampleBudget.slowest, l.sampleBudget.slowestTime = path, took
	}
	switch {
	case err != nil:
		l.reportInvalid(path, err)
	case ctx.Err() != nil:
		l.sampleBudget.skipped = append(l.sampleBudget.skipped, path)
	}
}

// warnSkippedSamples names the sinks whose mistakes may have been overlooked.
func (l *loader) warnSkippedSamples() {
	for _, path := range l.sampleBudget.skipped {
		l.Warn(path, fmt.Sprintf("its templates were not tried with all samples: there are %s for those of all sinks", sampleTimeout),
			"give the templates of "+l.sampleBudget.slowest+" less to do, which took the most")
	}
}

// Samples returns one of each kind of delivery that a sink may get: of each topic that it wants, in batches or a digest where it takes
// those. There are none where it wants none of the topics.
func Samples(s Sink, kind relay.SinkKind, catalog *relay.Catalog) []relay.Delivery {
	patterns, err := relay.ParsePatterns(s.Topics)
	if err != nil {
		return nil
	}
	var topics []string
	for _, t := range relay.OperationalTopics() {
		topics = append(topics, t.Name)
	}
	topics = slices.DeleteFunc(append(topics, catalog.Names()...), func(topic string) bool { return !patterns.Match(topic) })
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
	if s.Digest.Wait > 0 || kind.DigestWhenLimited && s.Ordering == "none" {
		list = append(list, samples.Digest(topics))
	}
	return list
}
