package history

import (
	"context"
	"errors"
	"time"

	"github.com/hubrelay/hubrelay/internal/await"
)

// maxFailedEvents bounds the memory of [Store.FailedEvents].
const maxFailedEvents = 200_000

// ErrTooManyEvents is returned if more events have failed than a replay can select.
var ErrTooManyEvents = errors.New("more than 200000 events have become dead letters of the sink or were dropped in this time")

// FailedEvents returns the events that a sink has not accepted and that are not attempted again, with the time at which they
// failed: the newest record of each is a dead letter or a drop. It reads the records since a time twice, so it needs memory only
// for failures, and leaves half of the time of Redis to others. The error is [ErrTooManyEvents] or means that Redis is unreachable.
//
// Records are up to a second late, and can be lost. An event may then be accepted already.
func (s *Store) FailedEvents(ctx context.Context, sink string, since time.Time) (map[EventID]time.Time, error) {
	failedAt := make(map[EventID]time.Time)
	err := s.forEachRecord(ctx, since, func(r Record) {
		id, at, hasFailed, isOf := r.outcomeAt(sink)
		if isOf && hasFailed && failedAt[id].Before(at) && len(failedAt) <= maxFailedEvents {
			failedAt[id] = at
		}
	})
	switch {
	case err != nil:
		return nil, err
	case len(failedAt) > maxFailedEvents:
		return nil, ErrTooManyEvents
	}
	err = s.forEachRecord(ctx, since, func(r Record) {
		id, at, hasFailed, isOf := r.outcomeAt(sink)
		if failed, ok := failedAt[id]; ok && isOf && !hasFailed && !at.Before(failed) {
			delete(failedAt, id)
		}
	})
	return failedAt, err
}

// forEachRecord calls visit with all attempts and drops that were stored since a time.
func (s *Store) forEachRecord(ctx context.Context, since time.Time, visit func(Record)) error {
	sel := Selection{Since: since, Limit: 1, Matches: func(r Record) bool {
		visit(r)
		return false
	}}
	for {
		start := time.Now()
		list, err := s.ListRecords(ctx, sel)
		if sel.After = list.Next; err != nil || list.Next == "" {
			return err
		}
		if !await.Duration(ctx, time.Since(start)) {
			return ctx.Err()
		}
	}
}

// outcomeAt returns the event of a record, the time of its outcome, and whether the sink will not get the event. An attempt counts
// at its end, because its event may be dropped in the meantime.
func (r *Record) outcomeAt(sink string) (id EventID, at time.Time, hasFailed, isOf bool) {
	if d := r.Drop; d != nil {
		return d.Event.ID, d.Time, true, d.Sink == sink
	}
	a := r.Attempt
	return a.Event.ID, a.Time.Add(a.Duration), a.State == StateDead, a.Sink == sink
}
