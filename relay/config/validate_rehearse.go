package config

import (
	"slices"
	"strings"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/samples"
)

// rehearse lets a kind that can try samples of what the sink would get.
func (l *loader) rehearse(path string, s Sink, catalog *relay.Catalog) {
	r, ok := s.Settings.(relay.SinkRehearser)
	if !ok || catalog == nil {
		return
	}
	list := Samples(s, l.kinds[s.Type], catalog)
	if len(list) == 0 {
		return
	}
	if err := r.Rehearse(strings.TrimPrefix(path, "sinks."), list); err != nil {
		l.invalid(path, err)
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
	if s.Digest.Wait > 0 || kind.Gathers && s.Ordering == "none" {
		list = append(list, samples.Digest(topics))
	}
	return list
}
