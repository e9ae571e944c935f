package delivery

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hubrelay/hubrelay/relay"
)

var (
	//go:embed scripts/replay_schedule.lua
	parkAllSource string

	parkAllScript = redis.NewScript(delaySource + parkAllSource)
)

// replayPageSize is how many log entries are read and parked in one go.
const replayPageSize = 100

// Log is what a replay needs of the log. Packages eventlog and queue implement it.
type Log interface {
	// Range returns up to count notifications behind a position, each with its Cursor.
	Range(ctx context.Context, partition int, after string, count int) ([]relay.Notification, error)
	// HasAllAfter tells whether everything that ever lay behind a position is still there.
	HasAllAfter(ctx context.Context, partition int, after string) (bool, error)
	// FilledTo is the position up to which the sink's queue was filled.
	FilledTo(ctx context.Context, partition int, sink string) (string, error)
	// Queued tells for each cursor whether the sink's queue still holds that notification.
	Queued(ctx context.Context, partition int, sink string, cursors []string) ([]bool, error)
	// IsAfter tells whether cursor lies behind position.
	IsAfter(cursor, position string) bool
}

// Replay says what a sink is to get again out of the log.
type Replay struct {
	Sink       string
	Filter     relay.Filter
	Partitions int
	// After is a position in the log: what lies behind it is replayed.
	After string
	// Backlog bounds how many deliveries may be parked; zero is no bound.
	Backlog int64
}

// ReplayResult says what a replay did.
type ReplayResult struct {
	// Scheduled is how many notifications were put into the delay queue.
	Scheduled int
	// Waiting is how many were left alone, because they wait for their delivery anyway.
	Waiting int
	// Complete is false where the log no longer reaches back to where the replay was to begin.
	Complete bool
	// Next is the position behind which a replay that ended with [ErrFull] can go on, where the log has one partition.
	Next string
}

// PositionAt is the position in a log behind which lies what was stored at t or later.
func PositionAt(t time.Time) string {
	ms := t.UnixMilli()
	if ms <= 0 {
		return "0-0"
	}
	return fmt.Sprintf("%d-18446744073709551615", ms-1)
}

// Replay parks everything that the sink was given once and that passes its filter, due at once under the same ids. What
// the sink still has to get stays as it is. It reads a bounded part of the log at a time and leaves Redis to the others
// for half of the time. After an error, what was done before it is done, and a repeat does no harm. With [ErrFull] it ends where
// the delay queue takes no more.
func (s *Store) Replay(ctx context.Context, log Log, r Replay) (ReplayResult, error) {
	result := ReplayResult{Complete: true}
	for partition := range r.Partitions {
		if err := s.replayPartition(ctx, log, r, partition, &result); err != nil {
			return result, fmt.Errorf("replay partition %d of the log: %w", partition, err)
		}
	}
	return result, s.signalChange(ctx)
}

func (s *Store) replayPartition(ctx context.Context, log Log, r Replay, partition int, result *ReplayResult) error {
	end, err := log.FilledTo(ctx, partition, r.Sink)
	if err != nil || !log.IsAfter(end, r.After) {
		return err
	}
	covers, err := log.HasAllAfter(ctx, partition, r.After)
	if err != nil {
		return err
	}
	result.Complete = result.Complete && covers
	for after := r.After; ; {
		start := time.Now()
		list, err := log.Range(ctx, partition, after, replayPageSize)
		if err != nil || len(list) == 0 {
			return err
		}
		more := len(list) == replayPageSize
		before := after
		after = list[len(list)-1].Cursor
		var wanted []relay.Notification
		for _, n := range list {
			if log.IsAfter(n.Cursor, end) {
				more = false // the dispatcher brings these
				break
			}
			if r.Filter.Match(n) {
				wanted = append(wanted, n)
			}
		}
		taken, err := s.scheduleReplay(ctx, log, r, partition, wanted, result)
		if errors.Is(err, ErrFull) && r.Partitions == 1 {
			if result.Next = before; taken > 0 {
				result.Next = wanted[taken-1].Cursor
			}
		}
		if err != nil || !more {
			return err
		}
		if err := yieldRedis(ctx, time.Since(start)); err != nil {
			return err
		}
	}
}

// scheduleReplay parks what the sink's queue does not hold, and returns how many of the list it came to.
func (s *Store) scheduleReplay(
	ctx context.Context, log Log, r Replay, partition int, list []relay.Notification, result *ReplayResult,
) (taken int, err error) {
	if len(list) == 0 {
		return 0, nil
	}
	cursors := make([]string, len(list))
	for i, n := range list {
		cursors[i] = n.Cursor
	}
	queued, err := log.Queued(ctx, partition, r.Sink, cursors)
	if err != nil {
		return 0, err
	}
	args, order := []any{r.Backlog}, s.ordering(r.Sink)
	var places []int
	for i, n := range list {
		if queued[i] {
			continue
		}
		body, err := newRecord(relay.Delivery{Notifications: []relay.Notification{n}}, time.Time{}).encode()
		if err != nil {
			return 0, err
		}
		args, places = append(args, n.ID, body, order.queueKey(n)), append(places, i)
	}
	parked, seen, err := s.scheduleNow(ctx, r.Sink, args)
	if err != nil {
		return 0, err
	}
	if taken = len(list); seen < len(places) {
		taken = places[seen]
	}
	result.Scheduled += parked
	result.Waiting += taken - parked
	if result.Scheduled == parked && parked > 0 {
		err = s.signalChange(ctx) // the first ones are due
	}
	if err == nil && taken < len(list) {
		err = ErrFull
	}
	return taken, err
}

// scheduleNow parks deliveries that are due at once. It returns how many were not parked before, and how many of them there
// was room for.
func (s *Store) scheduleNow(ctx context.Context, sink string, args []any) (parked, seen int, err error) {
	if len(args) < 2 {
		return 0, 0, nil
	}
	reply, err := parkAllScript.Run(ctx, s.client, s.retryQueueKeys(sink), args...).Int64Slice()
	if err == nil && len(reply) != 2 {
		err = errReply
	}
	if err != nil {
		return 0, 0, fmt.Errorf("park deliveries: %w", err)
	}
	return int(reply[0]), int(reply[1]), nil
}
