package history

import (
	"context"
	"errors"
	"time"
)

// maxFailedEvents bounds the memory of [Store.FailedEvents].
const maxFailedEvents = 200_000

// ErrTooManyEvents is returned if more events have failed than a replay can select.
var ErrTooManyEvents = errors.New("more than 200000 events have failed at the sink in this time")

// FailedEvents returns the events that a sink has not accepted: the newest record of each is not a delivery. It reads the
// records since a time twice, so it needs memory only for failures. The error is [ErrTooManyEvents] or means that Redis is
// unreachable.
func (s *Store) FailedEvents(ctx context.Context, sink string, since time.Time) (map[EventID]struct{}, error) {
	failedAt := make(map[EventID]time.Time)
	err := s.forEachRecord(ctx, since, func(r Record) bool {
		id, at, isDelivered, isOf := r.outcomeAt(sink)
		if isOf && !isDelivered && failedAt[id].Before(at) && len(failedAt) <= maxFailedEvents {
			failedAt[id] = at
		}
		return false
	})
	switch {
	case err != nil:
		return nil, err
	case len(failedAt) > maxFailedEvents:
		return nil, ErrTooManyEvents
	}
	err = s.forEachRecord(ctx, since, func(r Record) bool {
		id, at, isDelivered, isOf := r.outcomeAt(sink)
		if failed, ok := failedAt[id]; ok && isOf && isDelivered && !at.Before(failed) {
			delete(failedAt, id)
		}
		return false
	})
	failed := make(map[EventID]struct{}, len(failedAt))
	for id := range failedAt {
		failed[id] = struct{}{}
	}
	return failed, err
}

// forEachRecord calls visit with all attempts and drops that were stored since a time. visit returns false.
func (s *Store) forEachRecord(ctx context.Context, since time.Time, visit func(Record) bool) error {
	sel := Selection{Matches: visit, Since: since, Limit: 1}
	for {
		list, err := s.ListRecords(ctx, sel)
		if sel.After = list.Next; err != nil || list.Next == "" {
			return err
		}
	}
}

// outcomeAt returns the event and the time of a record of a sink, and whether the sink accepted the event.
func (r *Record) outcomeAt(sink string) (id EventID, at time.Time, isDelivered, isOf bool) {
	if d := r.Drop; d != nil {
		return d.Event.ID, d.Time, false, d.Sink == sink
	}
	a := r.Attempt
	return a.Event.ID, a.Time, a.State == StateDelivered, a.Sink == sink
}
