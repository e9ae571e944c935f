package delivery

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/hubrelay/hubrelay/internal/adminapi"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/delivery/store"
	"github.com/hubrelay/hubrelay/relay/internal/history"
)

// RetryDeliveries makes scheduled deliveries of a sink due at once, and starts a probe if the circuit breaker is open.
func (s *Service) RetryDeliveries(ctx context.Context, name string, ids []string) (adminapi.ChangeDeliveriesResult, error) {
	sink, err := s.requireActive(ctx, name)
	if err != nil {
		return adminapi.ChangeDeliveriesResult{}, err
	}
	ids = compactIDs(ids)
	outcomes, err := s.opts.Deliveries.Retries.MakeDueIDs(ctx, name, ids)
	result := adminapi.ChangeDeliveriesResult{Unchanged: []adminapi.UnchangedDelivery{}}
	for i, outcome := range outcomes {
		reason := string(outcome)
		switch outcome {
		case store.Changed:
			result.Changed++
			continue
		case store.UnchangedAbsent:
			var where queuePlace
			if where, reason, err = s.findUnscheduled(ctx, name, ids[i]); err != nil {
				return result, err
			}
			if where.isQueued {
				reason = adminapi.UnchangedWaiting
			}
		}
		result.Unchanged = append(result.Unchanged, adminapi.UnchangedDelivery{ID: ids[i], Reason: reason})
	}
	if result.Changed > 0 {
		sink.pipeline.ProbeNow()
	}
	return result, err
}

// DropDeliveries removes deliveries of a sink that wait for an attempt, and records that an operator did so.
func (s *Service) DropDeliveries(ctx context.Context, name string, ids []string) (adminapi.ChangeDeliveriesResult, error) {
	if err := s.requireKnown(ctx, name); err != nil {
		return adminapi.ChangeDeliveriesResult{}, err
	}
	ids = compactIDs(ids)
	dropped, err := s.opts.Deliveries.Retries.Drop(ctx, name, ids)
	result := adminapi.ChangeDeliveriesResult{Unchanged: []adminapi.UnchangedDelivery{}}
	for i, d := range dropped {
		reason := string(d.Outcome)
		switch d.Outcome {
		case store.Changed:
			result.Changed++
			s.recordDrops(name, d.Record)
			continue
		case store.UnchangedAbsent:
			if reason, err = s.dropQueued(ctx, name, ids[i]); err != nil {
				return result, err
			}
			if reason == "" {
				result.Changed++
				continue
			}
		}
		result.Unchanged = append(result.Unchanged, adminapi.UnchangedDelivery{ID: ids[i], Reason: reason})
	}
	return result, err
}

func (s *Service) recordDrops(sink string, r *store.Record) {
	if r == nil { // it cannot be decoded
		return
	}
	for i := range r.Notifications {
		n := r.Notifications[i].Decode()
		s.opts.History.RecordDrop(&n, sink, reasonOperator, time.Now())
	}
}

// dropQueued removes an event from the queue of a sink. reason is empty if it was there and no node has read it.
func (s *Service) dropQueued(ctx context.Context, sink, id string) (reason string, err error) {
	where, reason, err := s.findUnscheduled(ctx, sink, id)
	if err != nil || !where.isQueued {
		return reason, err
	}
	isDropped, isRead, err := s.opts.Queues.Drop(ctx, where.partition, sink, ConsumerGroup, where.notification.Cursor)
	switch {
	case err != nil:
		return "", err
	case isRead:
		return adminapi.UnchangedRunning, nil
	case !isDropped:
		return adminapi.UnchangedMissing, nil
	}
	s.opts.History.RecordDrop(&where.notification, sink, reasonOperator, time.Now())
	return "", nil
}

// queuePlace is the place of an event in the queue of a sink.
type queuePlace struct {
	isQueued     bool
	partition    int
	notification relay.Notification
}

// findUnscheduled finds a delivery that is not in the retry queue. reason is dead, digest or missing if it is not in the
// queue of the sink.
func (s *Service) findUnscheduled(ctx context.Context, sink, id string) (where queuePlace, reason string, err error) {
	reason = adminapi.UnchangedMissing
	at, err := s.opts.Deliveries.Locate(ctx, sink, id, []string{id})
	switch {
	case err != nil:
		return where, "", err
	case at.IsDead:
		return where, adminapi.UnchangedDead, nil
	case !at.SealAt.IsZero():
		return where, adminapi.UnchangedDigest, nil
	}
	event, ok := history.ParseEventID(id)
	if !ok {
		return where, reason, nil
	}
	entry, partition, found, err := s.opts.Log.FindNear(ctx, id, event.Time())
	if err != nil || !found {
		return where, reason, err
	}
	queued, err := s.opts.Queues.Queued(ctx, partition, sink, []string{entry.Cursor})
	if err != nil {
		return where, "", err
	}
	return queuePlace{queued[0], partition, entry.Notification}, reason, nil
}

// requireActive returns a configured sink, and 409.invalid-state if it is paused or disabled.
func (s *Service) requireActive(ctx context.Context, name string) (*openSink, error) {
	sink, err := s.requireConfigured(ctx, name)
	if err != nil {
		return nil, err
	}
	stored, err := s.opts.Deliveries.States.Get(ctx, name)
	if err == nil && stored.State.IsOff() {
		err = relay.NewError(relay.CodeInvalidState, fmt.Sprintf("sink %s is %s: resume it first with "+
			"'hubrelay sinks resume %s'", name, stored.State, name))
	}
	return sink, err
}

func compactIDs(ids []string) []string {
	return slices.Compact(slices.Sorted(slices.Values(ids)))
}
