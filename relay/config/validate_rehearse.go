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
	patterns, err := relay.ParsePatterns(s.Topics)
	if !ok || err != nil || catalog == nil {
		return
	}
	var topics []string
	for _, t := range relay.OperationalTopics() {
		topics = append(topics, t.Name)
	}
	topics = slices.DeleteFunc(append(topics, catalog.Names()...), func(topic string) bool { return !patterns.Match(topic) })
	if len(topics) == 0 {
		return
	}
	var list []relay.Delivery
	switch {
	case s.Batch.Wait > 0:
		list = append(list, samples.Batch(topics))
	case s.Digest.Wait == 0:
		list = samples.Deliveries(topics)
	}
	if s.Digest.Wait > 0 || l.kinds[s.Type].Gathers && s.Ordering == "none" {
		list = append(list, samples.Digest(topics))
	}
	if err := r.Rehearse(strings.TrimPrefix(path, "sinks."), list); err != nil {
		l.invalid(path, err)
	}
}
