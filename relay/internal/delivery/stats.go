package delivery

import (
	"context"
	"time"

	"github.com/hubrelay/hubrelay/internal/adminapi"
	"github.com/hubrelay/hubrelay/relay/internal/delivery/store"
	"github.com/hubrelay/hubrelay/relay/internal/history"
)

// statsInterval is the time between reads of statistics from Redis.
const statsInterval = 5 * time.Second

// sinkStats are the statistics of a sink in Redis.
type sinkStats struct {
	store.Stats
	// Queued is the number of entries in the queue.
	Queued int64
	// OldestAge is the age of the oldest delivery in the queue or among the scheduled retries, or 0.
	OldestAge time.Duration
}

// loadStats returns the statistics of the named sinks, in the same order.
func (s *Service) loadStats(ctx context.Context, names []string) ([]sinkStats, error) {
	queued, err := s.opts.Queues.Stats(ctx, names)
	if err != nil {
		return nil, err
	}
	stored, err := s.opts.Deliveries.Stats.Read(ctx, names)
	if err != nil {
		return nil, err
	}
	list := make([]sinkStats, len(names))
	for i := range list {
		list[i] = sinkStats{
			Stats: stored[i], Queued: queued[i].Length,
			OldestAge: max(queued[i].OldestAge, stored[i].OldestRetryAge),
		}
	}
	return list, nil
}

// recordNodeStates records which sinks became down, throttled or failed on this node since the last call, or recovered. It
// returns the states for the next call.
func (s *Service) recordNodeStates(before map[string]adminapi.SinkState) map[string]adminapi.SinkState {
	now := make(map[string]adminapi.SinkState)
	ofNode := func(state adminapi.SinkState) bool {
		return state == adminapi.SinkDown || state == adminapi.SinkThrottled || state == adminapi.SinkFailed
	}
	for _, sink := range s.sinks.list() {
		state := sink.stateOnNode(sink.pipeline.State())
		now[sink.name] = state.state
		last := before[sink.name]
		if state.state == last || !ofNode(state.state) && (!ofNode(last) || state.state != adminapi.SinkActive) {
			continue
		}
		s.opts.History.RecordSinkChange(history.SinkChange{
			Sink: sink.name, State: string(state.state), Actor: relayActor, Reason: state.reason,
			Node: s.opts.Node,
		})
	}
	return now
}

// updateMetrics updates the metrics about the content of Redis until ctx ends.
func (s *Service) updateMetrics(ctx context.Context) error {
	tick := time.NewTicker(statsInterval)
	defer tick.Stop()
	states := make(map[string]adminapi.SinkState)
	for {
		states = s.recordNodeStates(states)
		names := sinkNames(s.sinks.list())
		list, err := s.loadStats(ctx, names)
		if ctx.Err() != nil {
			return nil
		}
		s.metrics.RedisUp(err == nil)
		for i, f := range list {
			if s.sinks.get(names[i]) == nil {
				continue // removed since the list was made
			}
			s.metrics.Backlog(names[i], f.Queued+f.InDigests, f.Scheduled, f.DeadLetters)
			s.metrics.Oldest(names[i], f.OldestAge)
			s.metrics.LastSuccess(names[i], f.LastSuccess)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}
