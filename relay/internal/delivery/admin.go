package delivery

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hubrelay/hubrelay/internal/adminapi"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/delivery/store"
	"github.com/hubrelay/hubrelay/relay/internal/history"
)

// ListSinks returns a page of the sinks, sorted by name: configured ones, and removed ones that were not forgotten.
func (s *Service) ListSinks(ctx context.Context, r adminapi.PageRequest) (page adminapi.Page[adminapi.Sink], err error) {
	names, err := s.SinkNames(ctx)
	if err != nil {
		return page, err
	}
	selected := adminapi.SelectPage(names, r, func(name string) string { return name }, strings.Compare)
	page.Next = selected.Next
	page.Data, err = s.describeSinks(ctx, selected.Data)
	return page, err
}

// SinkNames returns the sorted names of the sinks that are configured or known in Redis.
func (s *Service) SinkNames(ctx context.Context) ([]string, error) {
	names, err := s.opts.Queues.KnownSinks(ctx)
	if err != nil {
		return nil, err
	}
	names = append(names, sinkNames(s.sinks.list())...)
	slices.Sort(names)
	return slices.Compact(names), nil
}

// SinksOfTypes returns the configured sinks of some types in the form "name (type)".
func (s *Service) SinksOfTypes(types ...string) []string {
	var list []string
	for _, sink := range s.sinks.list() {
		if slices.Contains(types, sink.cfg.Type) {
			list = append(list, fmt.Sprintf("%s (%s)", sink.name, sink.cfg.Type))
		}
	}
	return list
}

func (s *Service) describeSinks(ctx context.Context, names []string) ([]adminapi.Sink, error) {
	// Flush first, so the counts include recent deliveries. An error is ignored: a full Redis rejects the counts, but
	// an operator needs the list most in that state. loadStats reports a Redis that is unreachable.
	_ = s.reporter.FlushStats(ctx)
	all, err := s.loadStats(ctx, names)
	if err != nil {
		return nil, err
	}
	list, now := make([]adminapi.Sink, len(names)), time.Now().UTC().Truncate(time.Millisecond)
	for i, name := range names {
		f := all[i]
		list[i] = adminapi.Sink{
			Name: name, State: adminapi.SinkRemoved, Topics: []string{},
			Waiting: f.Queued + f.InDigests, WaitingInDigests: f.InDigests, Retrying: f.Scheduled, Dead: f.DeadLetters,
			Delivered: f.Delivered, Retries: f.Retried, FailedAttempts: f.Failed, Dropped: f.Dropped,
			AttemptSeconds: f.Duration.Seconds(),
			StateChangedAt: f.Since, LastSuccessAt: f.LastSuccess, LastError: f.LastError, LastErrorAt: f.LastErrorAt,
		}
		if f.OldestAge > 0 {
			list[i].OldestAt = now.Add(-f.OldestAge)
		}
		if list[i].FailedAttempts == nil {
			list[i].FailedAttempts = map[string]int64{}
		}
		if sink := s.sinks.get(name); sink != nil {
			list[i].InFlight = sink.pipeline.InFlight()
			list[i].FailingAccounts = sink.pipeline.DestinationHold().FailingAccounts
		}
		if sink := s.configuredSink(name); sink != nil {
			list[i].Configured, list[i].Type, list[i].CatchingUp = true, sink.cfg.Type, f.CatchingUp
			list[i].Topics = append(list[i].Topics, sink.cfg.Topics...)
			here := sink.stateOnNode(f.State)
			list[i].State, list[i].Reason = here.state, cmp.Or(here.reason, f.Reason)
			if here.state != adminapi.SinkState(f.State) {
				list[i].StateChangedAt = s.nodeStates.sinceOf(name, here.state)
			}
			list[i].NextAttemptAt = here.nextAttemptAt.UTC().Truncate(time.Millisecond)
		}
	}
	return list, nil
}

// sinkHealth returns the reason why a sink cannot deliver on this node, or nil.
func sinkHealth(s relay.Sink) error {
	if a, ok := s.(relay.Service); ok {
		return a.Health()
	}
	return nil
}

// nodeState is the state of a sink on this node.
type nodeState struct {
	state adminapi.SinkState
	// reason and nextAttemptAt are set if this node does not deliver to an active sink.
	reason        string
	nextAttemptAt time.Time
}

// stateOnNode returns the state of a sink on this node. stored is its state in Redis.
func (s *openSink) stateOnNode(stored store.State) nodeState {
	if stored.IsOff() {
		return nodeState{state: adminapi.SinkState(stored)}
	}
	if err := sinkHealth(s.impl); err != nil {
		return nodeState{state: adminapi.SinkFailed, reason: err.Error()}
	}
	h := s.pipeline.DestinationHold()
	switch {
	case !h.ThrottledUntil.IsZero():
		return nodeState{adminapi.SinkThrottled, "the destination asked to wait", h.ThrottledUntil}
	case !h.ProbeAt.IsZero():
		return nodeState{
			adminapi.SinkDown, "the destination failed many times in a row, so only one probe runs at a time", h.ProbeAt,
		}
	}
	if s.pipeline.IsBacklogFull() {
		return nodeState{
			state:  adminapi.SinkActive,
			reason: "scheduled retries have reached backlog or backlog_bytes, so new deliveries wait",
		}
	}
	return nodeState{state: adminapi.SinkActive}
}

// ShowSink returns one sink.
func (s *Service) ShowSink(ctx context.Context, name string) (adminapi.Sink, error) {
	if err := s.requireKnown(ctx, name); err != nil {
		return adminapi.Sink{}, err
	}
	list, err := s.describeSinks(ctx, []string{name})
	if err != nil {
		return adminapi.Sink{}, err
	}
	changes, err := s.opts.HistoryStore.SinkChanges(ctx, name, shownChanges)
	for _, c := range changes {
		list[0].Changes = append(list[0].Changes, adminapi.SinkChange{
			Time: c.Time, State: adminapi.SinkState(c.State), Actor: c.Actor, Reason: c.Reason, Node: c.Node,
		})
	}
	return list[0], err
}

// shownChanges is the number of changes that [Service.ShowSink] returns.
const shownChanges = 10

// requireKnown returns 404.sink for a sink that is neither configured nor known in Redis.
func (s *Service) requireKnown(ctx context.Context, name string) error {
	if s.sinks.get(name) != nil {
		return nil
	}
	names, err := s.opts.Queues.KnownSinks(ctx)
	if err != nil || slices.Contains(names, name) {
		return err
	}
	known, err := s.opts.Deliveries.Stats.HasData(ctx, name)
	if err == nil && !known {
		err = relay.NewError(relay.CodeNoSink, "there is no sink "+strconv.Quote(relay.Truncate(name, 200))+
			"; GET /api/sinks lists all sinks")
	}
	return err
}

// PauseSink stops attempts on all nodes until the sink is resumed. The actor is recorded.
func (s *Service) PauseSink(ctx context.Context, name, actor string) error {
	return s.setState(ctx, name, actor, adminapi.SinkPaused, func(ctx context.Context, _ *openSink) error {
		return s.opts.Deliveries.States.Pause(ctx, name)
	})
}

// ResumeSink also enables a disabled sink, ends a pause that its destination asked for, and starts a probe if the circuit
// breaker is open.
func (s *Service) ResumeSink(ctx context.Context, name, actor string) error {
	return s.setState(ctx, name, actor, adminapi.SinkActive, func(ctx context.Context, sink *openSink) error {
		if err := sink.pipeline.EndStoredCooldown(ctx); err != nil {
			return err
		}
		recovered, err := s.opts.Deliveries.States.Resume(ctx, name)
		if recovered {
			err = errors.Join(err, s.opts.Notices.SinkRecovered(ctx, name))
		}
		return err
	})
}

// RetrySink makes all scheduled retries of an active sink due immediately, and starts a probe if the circuit breaker is
// open.
func (s *Service) RetrySink(ctx context.Context, name string) (adminapi.RetryResult, error) {
	var result adminapi.RetryResult
	sink, err := s.requireActive(ctx, name)
	if err != nil {
		return result, err
	}
	if result.Sink, err = s.ShowSink(ctx, name); err != nil {
		return result, err
	}
	result.Started, err = s.opts.Deliveries.Retries.MakeDue(ctx, name)
	sink.pipeline.ProbeNow()
	result.OnOtherNode = !sink.pipeline.IsLeader()
	return result, err
}

func (s *Service) setState(
	ctx context.Context, name, actor string, state adminapi.SinkState, set func(context.Context, *openSink) error,
) error {
	sink, err := s.requireConfigured(ctx, name)
	if err != nil {
		return err
	}
	if err := set(ctx, sink); err != nil {
		return err
	}
	s.opts.History.RecordSinkChange(history.SinkChange{Sink: name, State: string(state), Actor: actor})
	return sink.pipeline.Refresh(ctx) // other nodes follow within a second
}

// requireConfigured returns a configured sink, and 409.invalid-state for a sink that was removed from the configuration.
func (s *Service) requireConfigured(ctx context.Context, name string) (*openSink, error) {
	if sink := s.configuredSink(name); sink != nil {
		return sink, nil
	}
	if err := s.requireKnown(ctx, name); err != nil {
		return nil, err
	}
	return nil, relay.NewError(relay.CodeInvalidState, fmt.Sprintf("the sink %s is not configured on this node: add it to the "+
		"configuration, or delete its data with 'hubrelay sinks forget %s'", name, name))
}

// ForgetSink deletes everything about a sink that no node has configured, except its dead letters unless deadLetters is set.
// Another node that has the sink would lose later events.
func (s *Service) ForgetSink(ctx context.Context, name string, deadLetters bool) error {
	switch {
	case s.handovers.isRemoving(name):
		return relay.NewError(relay.CodeInvalidState, "attempts of the removed sink are still in progress on this node; try "+
			"again in a few seconds")
	case s.appliedSink(name) != nil:
		return relay.NewError(relay.CodeInvalidState, "the sink "+name+" is configured; remove it from the configuration first")
	}
	nodes, err := s.opts.Nodes.OthersWithSink(ctx, name)
	if err != nil {
		return err
	}
	if len(nodes) > 0 {
		return relay.NewError(relay.CodeInvalidState, "remove the sink from the configuration of all nodes first, and try again: "+
			strings.Join(nodes, ", ")+" has the sink, is still stopping it, had it a few seconds ago, or has not reported its sinks yet")
	}
	if err := s.requireKnown(ctx, name); err != nil {
		return err
	}
	for partition := range s.keys.Partitions() {
		if err := s.opts.Queues.ForgetSink(ctx, partition, name); err != nil {
			return err
		}
	}
	if err := s.opts.HistoryStore.ForgetSink(ctx, name); err != nil {
		return err
	}
	return s.opts.Deliveries.Forget(ctx, name, deadLetters)
}
