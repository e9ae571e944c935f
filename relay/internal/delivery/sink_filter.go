package delivery

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/condition"
	"github.com/hubrelay/hubrelay/relay/internal/config"
	"github.com/hubrelay/hubrelay/relay/internal/dispatch"
)

// sinkFilter is the filter of a sink in the history.
type sinkFilter struct {
	Name         string   `json:"name"`
	Topics       []string `json:"topics,omitempty"`
	Hubs         []string `json:"hubs,omitempty"`
	Accounts     []string `json:"accounts,omitempty"`
	Environments []string `json:"environments,omitempty"`
	Clusters     []string `json:"clusters,omitempty"`
	Containers   []string `json:"containers,omitempty"`
	When         string   `json:"when,omitempty"`
}

func newSinkFilter(name string, c config.Sink) sinkFilter {
	return sinkFilter{name, c.Topics, c.Hubs, c.Accounts, c.Environments, c.Clusters, c.Containers, c.When}
}

// compile returns the filter for [sinkFilter.explain].
func (f *sinkFilter) compile() (relay.Filter, error) {
	return newFilter(config.Sink{
		Topics: f.Topics, Hubs: f.Hubs, Accounts: f.Accounts, Environments: f.Environments, Clusters: f.Clusters,
		Containers: f.Containers, When: f.When,
	})
}

// explain returns the rule that excludes n and a sentence about it, or "" if the filter matches.
func (f *sinkFilter) explain(filter relay.Filter, n relay.Notification) (rule, detail string) {
	passes, detail := filter.Explain(n)
	if passes {
		return "", ""
	}
	topics := filter.Topics
	for _, one := range []struct {
		rule   string
		filter relay.Filter
	}{
		{"topics", relay.Filter{Topics: topics}},
		{"hubs", relay.Filter{Topics: topics, Hubs: f.Hubs}},
		{"accounts", relay.Filter{Topics: topics, Accounts: f.Accounts}},
		{"environments", relay.Filter{Topics: topics, Environments: f.Environments}},
		{"clusters", relay.Filter{Topics: topics, Clusters: f.Clusters}},
		{"containers", relay.Filter{Topics: topics, Containers: f.Containers}},
	} {
		if !one.filter.Match(n) {
			return one.rule, detail
		}
	}
	envelope, _ := n.Envelope() // the filter has decoded it
	part := cmp.Or(condition.FirstFalse(f.When, &envelope), f.When)
	return "when: " + part, detail
}

// recordSinks stores the filters of the sinks of a dispatcher in the history.
func (s *Service) recordSinks(ctx context.Context, partition int, after string, sinks []dispatch.Sink) error {
	list := make([]json.RawMessage, len(sinks))
	for i := range sinks {
		list[i] = sinks[i].Config
	}
	text, err := json.Marshal(list)
	if err != nil {
		return err
	}
	return s.opts.History.RecordFilters(ctx, partition, after, text)
}

// filtersAt are the filters of all sinks at a time.
type filtersAt struct {
	bySink map[string]sinkFilter
	// areCurrent is set if the filters of that time are unknown, so these are the ones of today.
	areCurrent bool
}

// filtersFor returns the filters that were in force when an event was dispatched.
func (s *Service) filtersFor(ctx context.Context, e *eventState) (f filtersAt, err error) {
	f.bySink = make(map[string]sinkFilter)
	text, err := s.opts.HistoryStore.FiltersAt(ctx, e.partition, e.entry.Cursor)
	if err != nil {
		return f, err
	}
	if text == nil {
		f.areCurrent = true
		for _, sink := range s.sinks.list() {
			f.bySink[sink.name] = newSinkFilter(sink.name, sink.cfg)
		}
		return f, nil
	}
	var list []sinkFilter
	if err := json.Unmarshal(text, &list); err != nil {
		return f, fmt.Errorf("decode the filters: %w", err)
	}
	for _, one := range list {
		f.bySink[one.Name] = one
	}
	return f, nil
}
