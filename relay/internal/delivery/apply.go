package delivery

import (
	"context"
	"errors"
	"reflect"
	"slices"

	"github.com/hubrelay/hubrelay/relay/internal/config"
)

// Changes are the names of sinks by the effect of a new configuration.
type Changes struct {
	Added, Changed, Removed []string
	// Kept is the number of sinks without a change.
	Kept int
	// Stopping are the removed and changed sinks whose earlier attempts are still in progress. A changed sink starts when
	// they end.
	Stopping []string
}

// HasNewSettings reports whether the settings of a sink in a configuration differ from those in use.
func (s *Service) HasNewSettings(name string, cfg config.Sink) bool {
	sink := s.appliedSink(name)
	return sink == nil || !reflect.DeepEqual(sink.cfg.Settings, cfg.Settings)
}

// Apply applies a configuration of the sinks. Sinks without a change continue to run. After an error nothing has
// changed, except that new sinks may be registered in the log. It waits up to a second until the sinks that it
// removes or replaces have stopped. Otherwise they stop in the background.
func (s *Service) Apply(ctx context.Context, configured map[string]config.Sink) (Changes, error) {
	p, err := s.planChanges(ctx, configured)
	if err != nil {
		return Changes{}, err
	}
	all := slices.Concat(p.kept, p.added, p.changed)
	slices.SortFunc(all, byName)
	warnRateConflicts(s.log, all, p.kept)
	matcher := newMatcher(all)
	for _, d := range s.dispatchers {
		d.Reload(matcher)
	}
	s.opts.Notices.SetListeners(noticeListeners(all))
	stopping := s.applyPlan(ctx, p)
	return Changes{
		Added: sinkNames(p.added), Changed: sinkNames(p.changed), Removed: sinkNames(p.removed), Kept: len(p.kept),
		Stopping: stopping,
	}, nil
}

// plan lists the sinks by the effect of a new configuration.
type plan struct {
	added, changed, removed []*openSink // changed contains the new ones
	kept                    []*openSink
}

// planChanges registers new sinks in the log and then opens the sinks that are new or have changed.
func (s *Service) planChanges(ctx context.Context, configured map[string]config.Sink) (*plan, error) {
	p := &plan{}
	opening, startPositions := make(map[string]config.Sink), make(map[string]bool)
	for name, cfg := range configured {
		before := s.appliedSink(name)
		if before != nil && reflect.DeepEqual(before.cfg, cfg) {
			p.kept = append(p.kept, before)
			continue
		}
		if opening[name] = cfg; before == nil {
			startPositions[name] = startsAtBeginning(cfg)
		}
	}
	for _, before := range s.appliedSinks() {
		if _, found := configured[before.name]; !found {
			p.removed = append(p.removed, before)
		}
	}
	for partition := range s.keys.Partitions() {
		if err := s.registerSinks(ctx, partition, startPositions); err != nil {
			return nil, err
		}
	}
	opened, err := s.sinks.open(opening)
	if err != nil {
		return nil, err
	}
	for _, sink := range opened {
		if _, isNew := startPositions[sink.name]; isNew {
			p.added = append(p.added, sink)
		} else {
			p.changed = append(p.changed, sink)
		}
	}
	return p, nil
}

// applyPlan changes the running sinks. It handles them concurrently, so a sink with slow attempts does not delay others.
// It returns the sinks that still stop.
func (s *Service) applyPlan(ctx context.Context, p *plan) (stopping []string) {
	started := make(map[string]*handover)
	for _, sink := range p.removed {
		started[sink.name] = s.startHandover(ctx, sink.name, nil)
	}
	for _, sink := range slices.Concat(p.added, p.changed) {
		started[sink.name] = s.startHandover(ctx, sink.name, sink)
	}
	return s.awaitHandovers(ctx, started)
}

// replaceSink adds a sink, or replaces a stopped one with the same name, and starts deliveries to it. While all sinks
// stop, it closes the new one.
func (s *Service) replaceSink(ctx context.Context, sink *openSink) error {
	if ctx.Err() != nil {
		return sink.close(context.WithoutCancel(ctx))
	}
	if s.sinks.get(sink.name) == nil {
		s.sinks.initMetrics(sink)
	}
	if err := s.newPipeline(sink); err != nil {
		s.sinks.remove(sink.name)
		return errors.Join(err, sink.close(context.WithoutCancel(ctx)))
	}
	s.sinks.add(sink)
	s.startSink(ctx, sink)
	return nil
}
