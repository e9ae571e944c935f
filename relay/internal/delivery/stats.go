package delivery

import (
	"context"
	"sync"
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
	// CatchingUp is set if the log has further events for the sink.
	CatchingUp bool
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
			OldestAge:  max(queued[i].OldestAge, stored[i].OldestRetryAge),
			CatchingUp: queued[i].CatchingUp,
		}
	}
	return list, nil
}

// nodeStates are the states of the sinks on this node, by name. It may be used concurrently.
type nodeStates struct {
	mu     sync.Mutex
	byName map[string]stateSince
}

type stateSince struct {
	state adminapi.SinkState
	since time.Time // when the state was first seen
}

// sinceOf returns the time at which the sink got this state. It is zero if that was not recorded yet.
func (n *nodeStates) sinceOf(sink string, state adminapi.SinkState) time.Time {
	n.mu.Lock()
	defer n.mu.Unlock()
	if last := n.byName[sink]; last.state == state {
		return last.since
	}
	return time.Time{}
}

// updateStates stores the states and returns the previous ones. A state that has not changed keeps its time.
func (n *nodeStates) updateStates(now map[string]stateSince) (before map[string]stateSince) {
	n.mu.Lock()
	defer n.mu.Unlock()
	before = n.byName
	for name, s := range now {
		if last, known := before[name]; known && last.state == s.state {
			now[name] = last
		}
	}
	n.byName = now
	return before
}

// recordNodeStates records which sinks became down, throttled or failed on this node since the last call, or recovered.
func (s *Service) recordNodeStates() {
	ofNode := func(state adminapi.SinkState) bool {
		return state == adminapi.SinkDown || state == adminapi.SinkThrottled || state == adminapi.SinkFailed
	}
	sinks, at := s.sinks.list(), time.Now().UTC().Truncate(time.Millisecond)
	now, states := make(map[string]stateSince), make([]nodeState, len(sinks))
	for i, sink := range sinks {
		states[i] = sink.stateOnNode(sink.pipeline.State())
		now[sink.name] = stateSince{states[i].state, at}
	}
	before := s.nodeStates.updateStates(now)
	for i, sink := range sinks {
		state, last := states[i], before[sink.name].state
		if state.state == last || !ofNode(state.state) && (!ofNode(last) || state.state != adminapi.SinkActive) {
			continue
		}
		s.opts.History.RecordSinkChange(history.SinkChange{
			Sink: sink.name, State: string(state.state), Actor: relayActor, Reason: state.reason,
			Node: s.opts.Node,
		})
	}
}

// updateMetrics updates the metrics about the content of Redis until ctx ends.
func (s *Service) updateMetrics(ctx context.Context) error {
	tick := time.NewTicker(statsInterval)
	defer tick.Stop()
	for {
		s.recordNodeStates()
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
