package delivery

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/hubrelay/hubrelay/internal/adminapi"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/delivery/store"
	"github.com/hubrelay/hubrelay/relay/internal/history"
)

// changeTime is the time after which [Service.RetryDeliveries] and [Service.DropDeliveries] stop searching the queue.
const changeTime = 10 * time.Second

// RetryDeliveries makes scheduled deliveries of a sink due at once, and starts a probe if the circuit breaker is open.
func (s *Service) RetryDeliveries(ctx context.Context, name string, ids []string) (adminapi.ChangeResult, error) {
	result := adminapi.NewChangeResult(0)
	sink, err := s.requireActive(ctx, name)
	if err != nil {
		return result, err
	}
	ids = compactIDs(ids)
	statuses, err := s.opts.Deliveries.Retries.MakeDueIDs(ctx, name, ids)
	var absent []string
	for i, status := range statuses {
		if status == store.Changed {
			result.Changed++
		} else {
			absent = appendUnchanged(&result, absent, ids[i], status)
		}
	}
	if result.Changed > 0 {
		sink.pipeline.ProbeNow()
	}
	findErr := s.forEachUnscheduled(ctx, name, absent, &result, func(queuePlace) (reason string, err error) {
		return adminapi.UnchangedWaiting, nil
	})
	return result, errors.Join(err, findErr)
}

// DropDeliveries removes deliveries of a sink that wait for an attempt, and records that an operator did so.
func (s *Service) DropDeliveries(ctx context.Context, name string, ids []string) (adminapi.ChangeResult, error) {
	result := adminapi.NewChangeResult(0)
	if err := s.requireKnown(ctx, name); err != nil {
		return result, err
	}
	ids = compactIDs(ids)
	dropped, err := s.opts.Deliveries.Retries.Drop(ctx, name, ids)
	var absent []string
	for i, d := range dropped {
		if d.Status == store.Changed {
			result.Changed++
			s.recordDrops(name, d.Record)
		} else {
			absent = appendUnchanged(&result, absent, ids[i], d.Status)
		}
	}
	group, groupErr := s.findReaders(ctx, name)
	if groupErr != nil {
		return result, errors.Join(err, groupErr)
	}
	findErr := s.forEachUnscheduled(ctx, name, absent, &result, func(at queuePlace) (reason string, err error) {
		isDropped, isRead, err := s.opts.Queues.Drop(ctx, at.partition, name, group, at.notification.Cursor)
		switch {
		case err != nil:
			return "", err
		case isRead:
			return adminapi.UnchangedRunning, nil
		case !isDropped:
			return adminapi.UnchangedMissing, nil
		}
		result.Changed++
		s.opts.History.RecordDrop(&at.notification, history.Drop{Sink: name, Reason: adminapi.DroppedByOperator, Time: time.Now()})
		return "", nil
	})
	return result, errors.Join(err, findErr)
}

// findReaders returns the consumer group of a sink, or "" if no node has the sink, so no node will attempt what it has read.
func (s *Service) findReaders(ctx context.Context, sink string) (group string, err error) {
	if s.sinks.get(sink) != nil {
		return ConsumerGroup, nil
	}
	nodes, err := s.opts.Nodes.OthersWithSink(ctx, sink)
	if len(nodes) > 0 {
		group = ConsumerGroup
	}
	return group, err
}

// appendUnchanged adds a delivery that was not changed to the result, or to absent if it is not scheduled.
func appendUnchanged(
	result *adminapi.ChangeResult, absent []string, id string, status store.ChangeStatus,
) []string {
	reason := adminapi.UnchangedRunning
	switch status {
	case store.UnchangedMissing:
		return append(absent, id)
	case store.UnchangedBlocked:
		reason = adminapi.UnchangedOrdering
	case store.Changed, store.UnchangedRunning:
	}
	result.Unchanged = append(result.Unchanged, adminapi.Unchanged{ID: id, Reason: reason})
	return absent
}

func (s *Service) recordDrops(sink string, r *store.Record) {
	if r == nil || r.IsStandIn { // it cannot be decoded, or is no event
		return
	}
	for i := range r.Notifications {
		n := r.Notifications[i].Decode()
		s.opts.History.RecordDrop(&n, history.Drop{Sink: sink, Reason: adminapi.DroppedByOperator, Time: time.Now(), Attempts: r.AttemptCount})
	}
}

// queuePlace is the place of an event in the queue of a sink.
type queuePlace struct {
	partition    int
	notification relay.Notification
}

// forEachUnscheduled finds deliveries that are not in the retry queue. It calls change for each delivery in the queue of the
// sink; change returns why the delivery stays unchanged, or "". All unchanged deliveries are added to the result. If the search
// takes too long, the rest is added with the reason unknown.
func (s *Service) forEachUnscheduled(
	ctx context.Context, sink string, ids []string, result *adminapi.ChangeResult,
	change func(queuePlace) (reason string, err error),
) error {
	search, cancel := context.WithTimeout(ctx, changeTime)
	defer cancel()
	for _, id := range ids {
		at, reason, err := s.findUnscheduled(search, sink, id)
		if err == nil && reason == "" {
			reason, err = change(at)
		}
		if err != nil && search.Err() != nil && ctx.Err() == nil {
			reason, err = adminapi.UnchangedUnknown, nil
		}
		if err != nil {
			return err
		}
		if reason != "" {
			result.Unchanged = append(result.Unchanged, adminapi.Unchanged{ID: id, Reason: reason})
		}
	}
	return nil
}

// findUnscheduled finds a delivery that is not in the retry queue. reason is empty if it is in the queue of the sink.
func (s *Service) findUnscheduled(ctx context.Context, sink, id string) (at queuePlace, reason string, err error) {
	where, err := s.opts.Deliveries.Locate(ctx, sink, id, []string{id})
	switch {
	case err != nil:
		return at, "", err
	case where.IsScheduled: // since a moment ago
		return at, adminapi.UnchangedRunning, nil
	case !where.SealAt.IsZero():
		return at, adminapi.UnchangedDigest, nil
	}
	if event, ok := history.ParseEventID(id); ok {
		n, partition, found, err := s.opts.Queues.FindNear(ctx, sink, id, event.Time())
		if found || err != nil {
			return queuePlace{partition, n}, "", err
		}
	}
	if where.IsDead {
		return at, adminapi.UnchangedDead, nil
	}
	return at, adminapi.UnchangedMissing, nil
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
