package deliver

import (
	"context"
	_ "embed"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hubrelay/hubrelay/relay"
)

var (
	//go:embed scripts/park_all.lua
	parkAllSource string

	parkAllScript = redis.NewScript(delaySource + parkAllSource)
)

// replayStep is how many log entries are read and parked in one go.
const replayStep = 100

// Log is what a replay needs of the log. *backbone.Backbone has it.
type Log interface {
	// Range returns up to count notifications behind a position, each with its Cursor.
	Range(ctx context.Context, partition int, after string, count int) ([]relay.Notification, error)
	// Covers tells whether everything that ever lay behind a position is still there.
	Covers(ctx context.Context, partition int, after string) (bool, error)
	// Reached is the position up to which the sink's queue was filled.
	Reached(ctx context.Context, partition int, sink string) (string, error)
	// Queued tells for each cursor whether the sink's queue still holds that notification.
	Queued(ctx context.Context, partition int, sink string, cursors []string) ([]bool, error)
	// Behind tells whether cursor lies behind position.
	Behind(cursor, position string) bool
}

// Replay says what a sink is to get again out of the log.
type Replay struct {
	Sink       string
	Filter     relay.Filter
	Partitions int
	// After is a position in the log: what lies behind it is replayed.
	After string
}

// Replayed says what a replay did.
type Replayed struct {
	// Parked is how many notifications were put into the delay queue.
	Parked int
	// Waiting is how many were left alone, because they wait for their delivery anyway.
	Waiting int
	// Complete is false where the log no longer reaches back to where the replay was to begin.
	Complete bool
}

// CursorAt is the position in a log behind which lies what was stored at t or later.
func CursorAt(t time.Time) string {
	ms := t.UnixMilli()
	if ms <= 0 {
		return "0-0"
	}
	return fmt.Sprintf("%d-18446744073709551615", ms-1)
}

// Replay parks everything that the sink was given once and that passes its filter, due at once under the same ids. What
// the sink still has to get stays as it is. It reads a bounded part of the log at a time and leaves Redis to the others
// for half of the time. After an error, what was done before it is done, and a repeat does no harm.
func (s *Store) Replay(ctx context.Context, log Log, r Replay) (Replayed, error) {
	result := Replayed{Complete: true}
	for partition := range r.Partitions {
		if err := s.replay(ctx, log, r, partition, &result); err != nil {
			return result, fmt.Errorf("replay partition %d of the log: %w", partition, err)
		}
	}
	return result, s.touch(ctx)
}

func (s *Store) replay(ctx context.Context, log Log, r Replay, partition int, result *Replayed) error {
	end, err := log.Reached(ctx, partition, r.Sink)
	if err != nil || !log.Behind(end, r.After) {
		return err
	}
	covers, err := log.Covers(ctx, partition, r.After)
	if err != nil {
		return err
	}
	result.Complete = result.Complete && covers
	for after := r.After; ; {
		start := time.Now()
		list, err := log.Range(ctx, partition, after, replayStep)
		if err != nil || len(list) == 0 {
			return err
		}
		more := len(list) == replayStep
		after = list[len(list)-1].Cursor
		var wanted []relay.Notification
		for _, n := range list {
			if log.Behind(n.Cursor, end) {
				more = false // the dispatcher brings these
				break
			}
			if r.Filter.Match(n) {
				wanted = append(wanted, n)
			}
		}
		if err := s.parkAll(ctx, log, r.Sink, partition, wanted, result); err != nil || !more {
			return err
		}
		if err := rest(ctx, time.Since(start)); err != nil {
			return err
		}
	}
}

func (s *Store) parkAll(ctx context.Context, log Log, sink string, partition int, list []relay.Notification, result *Replayed) error {
	if len(list) == 0 {
		return nil
	}
	cursors := make([]string, len(list))
	for i, n := range list {
		cursors[i] = n.Cursor
	}
	queued, err := log.Queued(ctx, partition, sink, cursors)
	if err != nil {
		return err
	}
	var args []any
	for i, n := range list {
		if queued[i] {
			continue
		}
		r := newRecord(relay.Delivery{Notifications: []relay.Notification{n}}, time.Time{})
		body, err := r.encode()
		if err != nil {
			return err
		}
		args = append(args, n.ID, body)
	}
	parked := 0
	if len(args) > 0 {
		if parked, err = parkAllScript.Run(ctx, s.client, s.delay(sink), args...).Int(); err != nil {
			return fmt.Errorf("park deliveries: %w", err)
		}
	}
	result.Parked += parked
	result.Waiting += len(list) - parked
	if result.Parked == parked && parked > 0 {
		return s.touch(ctx) // the first ones are due
	}
	return nil
}
