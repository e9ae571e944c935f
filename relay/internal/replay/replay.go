// Package replay schedules what the log contains for a sink that has got it already.
//
// It reads the log and writes the retry queue. It does not deliver, and it does not read the sink's queue.
package replay

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/delivery/store"
	"github.com/hubrelay/hubrelay/relay/internal/eventlog"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
)

// maxPageSize is the maximum number of log entries that are read and scheduled at once.
const maxPageSize = 100

var errNearlyFull = errors.New("publishing would stop soon")

// Log is the part of the log and the queues that a replay uses. Packages eventlog and queue implement it.
type Log interface {
	// Range returns up to count notifications after a position, each with its Cursor.
	Range(ctx context.Context, partition int, after string, count int) ([]relay.Notification, error)
	// HasAllAfter reports whether everything after a position is still in the log.
	HasAllAfter(ctx context.Context, partition int, after string) (bool, error)
	// FilledTo returns the position up to which the sink's queue was filled.
	FilledTo(ctx context.Context, partition int, sink string) (string, error)
	// Queued reports for each cursor whether the sink's queue still contains that notification.
	Queued(ctx context.Context, partition int, sink string, cursors []string) ([]bool, error)
	// IsAfter reports whether cursor is after position.
	IsAfter(cursor, position string) bool
}

// RetryStore schedules deliveries. [store.Retries] implements it.
type RetryStore interface {
	ScheduleAll(
		ctx context.Context, sink string, maxBacklog int64, all []store.Scheduled,
	) (added, processed int, err error)
	// CheckBytes returns [store.ErrFull] if the scheduled deliveries of a sink have reached maxBytes. 0 means no limit.
	CheckBytes(ctx context.Context, sink string, maxBytes int64) error
	// CountScheduled returns how many of the IDs are scheduled.
	CountScheduled(ctx context.Context, sink string, ids []string) (int, error)
}

// StateStore makes nodes check their sinks. [store.States] implements it.
type StateStore interface {
	SignalChange(ctx context.Context) error
}

var (
	_ RetryStore = (*store.Retries)(nil)
	_ StateStore = (*store.States)(nil)
)

// Memory is the memory of Redis.
type Memory interface {
	// Measure updates IsNearlyFull.
	Measure(ctx context.Context)
	// IsNearlyFull reports whether publishing stops soon.
	IsNearlyFull() bool
}

// Replayer replays the log for sinks. It may be used concurrently.
type Replayer struct {
	Log     Log
	Retries RetryStore
	States  StateStore
	Memory  Memory
}

// Selection selects notifications that a sink receives again. The filter of the sink must match them, too.
type Selection struct {
	// After is a time (RFC 3339), the cursor of a stream, or the ID of an entry of the log. Empty means the beginning.
	After string
	// Until excludes notifications that were stored at that time or later. Zero means no limit.
	Until time.Time
	// Selects reports whether a notification is selected.
	Selects func(relay.Notification) bool
	// FailedOnly selects only what the sink has not accepted, according to the history.
	FailedOnly bool
	// DryRun only counts the notifications.
	DryRun bool
}

// Request selects what a sink gets again.
type Request struct {
	Sink       string
	Filter     relay.Filter
	Ordering   store.Ordering
	Partitions int
	After      Start
	// Until is a position in the log. The replay ends at it. Empty means the end of the log.
	Until string
	// Selects reports whether a notification that matches Filter is replayed. Nil selects all.
	Selects func(relay.Notification) bool
	// Backlog is the maximum number of scheduled deliveries. 0 means no limit.
	Backlog int64
	// BacklogBytes is the maximum memory of the scheduled deliveries. A page may exceed it. 0 means no limit.
	BacklogBytes int64
	// DryRun schedules nothing, and only counts what would be scheduled. It ignores Backlog and BacklogBytes.
	DryRun bool
}

// Start returns the position after which the replay of a partition starts, or false if it skips the partition.
type Start func(partition int) (position string, included bool)

// StartAt starts after the same position in all partitions.
func StartAt(position string) Start { return func(int) (string, bool) { return position, true } }

// Result is the result of a replay.
type Result struct {
	// Scheduled is the number of notifications that were added to the retry queue.
	Scheduled int
	// Waiting is the number of notifications that were skipped, because their delivery is still waiting or retried.
	Waiting int
	// Complete is false if the log does not contain everything after the requested position.
	Complete bool
	// Next is the position at which a replay that ended with an error can continue. It is set only if the log has one partition.
	Next string
}

// PositionAt returns the position in a log before everything that was stored at t or later.
func PositionAt(t time.Time) string {
	ms := t.UnixMilli()
	if ms <= 0 {
		return "0-0"
	}
	return fmt.Sprintf("%d-18446744073709551615", ms-1)
}

// Replay schedules everything that passed the sink's filter before, due at once and with the same IDs. What is still
// waiting for the sink stays unchanged. Replay leaves half of the time of Redis to others. If the retry queue is full,
// it returns [store.ErrFull]. A replay must not stop publishing, so if Redis is nearly full, it returns an error that wraps
// [redisconn.ErrFull]. After an error, the result describes what was done, and a repetition is safe.
func (r Replayer) Replay(ctx context.Context, q Request) (Result, error) {
	result := Result{Complete: true}
	for partition := range q.Partitions {
		if err := r.replayPartition(ctx, q, partition, &result); err != nil {
			return result, fmt.Errorf("replay partition %d of the log: %w", partition, err)
		}
	}
	result.Next = ""
	if q.DryRun {
		return result, nil
	}
	return result, r.States.SignalChange(ctx)
}

func (r Replayer) replayPartition(ctx context.Context, q Request, partition int, result *Result) error {
	after, included := q.After(partition)
	if !included {
		return nil
	}
	end, err := r.Log.FilledTo(ctx, partition, q.Sink)
	if err != nil {
		return err
	}
	if q.Until != "" && r.Log.IsAfter(end, q.Until) {
		end = q.Until
	}
	if !r.Log.IsAfter(end, after) {
		return nil
	}
	complete, err := r.Log.HasAllAfter(ctx, partition, after)
	if err != nil {
		return err
	}
	result.Complete = result.Complete && complete
	var size eventlog.ReadSize
	for {
		if q.Partitions == 1 {
			result.Next = after
		}
		start := time.Now()
		page, err := r.Log.Range(ctx, partition, after, size.NextCount(maxPageSize))
		if err != nil || len(page) == 0 {
			return err
		}
		more, largest := true, 0
		after = page[len(page)-1].Cursor
		var matching []relay.Notification
		for _, n := range page {
			largest = max(largest, len(n.Data))
			if r.Log.IsAfter(n.Cursor, end) {
				more = false // the dispatcher has not queued the rest yet, or it was not requested
				break
			}
			if q.Filter.Match(n) && (q.Selects == nil || q.Selects(n)) {
				matching = append(matching, n)
			}
		}
		size.Record(largest)
		processed, err := r.schedulePage(ctx, q, partition, matching, result)
		if err != nil && processed > 0 && q.Partitions == 1 {
			result.Next = matching[processed-1].Cursor
		}
		if err != nil || !more {
			return err
		}
		if err := store.Yield(ctx, time.Since(start)); err != nil {
			return err
		}
	}
}

// schedulePage schedules the notifications that the sink's queue does not contain. It returns how many of list it
// processed.
func (r Replayer) schedulePage(
	ctx context.Context, q Request, partition int, list []relay.Notification, result *Result,
) (processed int, err error) {
	if len(list) == 0 {
		return 0, nil
	}
	cursors := make([]string, len(list))
	for i, n := range list {
		cursors[i] = n.Cursor
	}
	queued, err := r.Log.Queued(ctx, partition, q.Sink, cursors)
	if err != nil {
		return 0, err
	}
	var deliveries []store.Scheduled
	var indexes []int // of the deliveries in list
	for i, n := range list {
		if queued[i] {
			continue
		}
		body, err := store.NewScheduledRecord(n).Encode()
		if err != nil {
			return 0, err
		}
		deliveries = append(deliveries, store.Scheduled{ID: n.ID, Body: body, OrderingKey: q.Ordering.StoredKey(n)})
		indexes = append(indexes, i)
	}
	if q.DryRun {
		scheduled, err := r.countScheduled(ctx, q.Sink, deliveries)
		if err != nil {
			return 0, err
		}
		result.Scheduled += len(deliveries) - scheduled
		result.Waiting += len(list) - len(deliveries) + scheduled
		return len(list), nil
	}
	if r.Memory.Measure(ctx); r.Memory.IsNearlyFull() {
		return 0, redisconn.NewFullError("replay", errNearlyFull)
	}
	if len(deliveries) > 0 {
		if err := r.Retries.CheckBytes(ctx, q.Sink, q.BacklogBytes); err != nil {
			return 0, err
		}
	}
	added, seen, err := r.Retries.ScheduleAll(ctx, q.Sink, q.Backlog, deliveries)
	if err != nil {
		return 0, err
	}
	if processed = len(list); seen < len(indexes) {
		processed = indexes[seen]
	}
	result.Scheduled += added
	result.Waiting += processed - added
	if result.Scheduled == added && added > 0 {
		err = r.States.SignalChange(ctx) // the first ones are due
	}
	if err == nil && processed < len(list) {
		err = store.ErrFull
	}
	return processed, err
}

func (r Replayer) countScheduled(ctx context.Context, sink string, list []store.Scheduled) (int, error) {
	ids := make([]string, len(list))
	for i, d := range list {
		ids[i] = d.ID
	}
	return r.Retries.CountScheduled(ctx, sink, ids)
}
