package backbone

import (
	"context"
	_ "embed"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

var (
	//go:embed scripts/queued.lua
	queuedSource string

	//go:embed scripts/queue_stats.lua
	queueSource string

	queuedScript = redis.NewScript(queuedSource)
)

// QueueStats is what a sink's queues hold, those in flight included.
type QueueStats struct {
	Length int64
	// OldestAge is how long its oldest entry has been in the log, by the clock of Redis; zero for an empty queue.
	OldestAge time.Duration
}

// Queues returns what the queues of each sink hold, in all partitions together. It asks Redis even where there are no
// sinks, so that an error always means that Redis is away.
func (b *Store) Queues(ctx context.Context, sinks []string) ([]QueueStats, error) {
	partitions := b.keys.Partitions()
	replies := make([]*redis.Cmd, 0, len(sinks)*partitions)
	_, err := b.client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		pipe.Exists(ctx, b.keys.StoredPartitions())
		for _, sink := range sinks {
			for _, queue := range b.keys.Queues(sink) {
				replies = append(replies, pipe.Eval(ctx, queueSource, []string{queue}))
			}
		}
		return nil
	})
	if err != nil {
		return nil, wrapError("measure the queues", err)
	}
	list := make([]QueueStats, len(sinks))
	for i, reply := range replies {
		n, err := reply.Int64Slice()
		if err == nil && len(n) != 2 {
			err = errReply
		}
		if err != nil {
			return nil, wrapError("measure the queues", err)
		}
		q := &list[i/partitions]
		q.Length += n[0]
		q.OldestAge = max(q.OldestAge, time.Duration(n[1])*time.Millisecond, 0)
	}
	return list, nil
}

// FilledTo is the position in a partition's log up to which a sink's queue was filled. What lies behind it is still to
// come; of what lies before it, the sink may not have wanted everything.
func (b *Store) FilledTo(ctx context.Context, partition int, sink string) (string, error) {
	position, err := b.Position(ctx, partition)
	if err != nil {
		return "", err
	}
	at, err := b.client.HGet(ctx, b.keys.SinkPositions(partition), sink).Result()
	if err != nil && !errors.Is(err, redis.Nil) {
		return "", wrapError("read a sink's position", err)
	}
	at, served := strings.CutPrefix(at, "+")
	if served && CompareEntryIDs(at, position) < 0 || at == "" {
		return position, nil
	}
	return at, nil
}

// Queued tells for each log cursor whether a sink's queue still holds that entry.
func (b *Store) Queued(ctx context.Context, partition int, sink string, cursors []string) ([]bool, error) {
	args := make([]any, len(cursors))
	for i, c := range cursors {
		args[i] = c
	}
	held, err := queuedScript.Run(ctx, b.client, []string{b.keys.Queue(sink, partition)}, args...).Int64Slice()
	if err == nil && len(held) != len(cursors) {
		err = errReply
	}
	if err != nil {
		return nil, wrapError("look into a sink's queue", err)
	}
	queued := make([]bool, len(held))
	for i, n := range held {
		queued[i] = n == 1
	}
	return queued, nil
}

// takeCount is how many pending entries change hands in one go.
const takeCount = 1000

// ClaimPending makes everything that a sink's queues have handed out the consumer's, whoever had it and however long it
// is ago. A Subscriber of that name then begins with it in the order of the queue, where claimed bit by bit it would come
// behind what is newer. It is for those that know that nobody else works on it.
func (b *Store) ClaimPending(ctx context.Context, sink, group, consumer string) error {
	for _, queue := range b.keys.Queues(sink) {
		for from := "0-0"; from != ""; {
			_, next, err := b.client.XAutoClaimJustID(ctx, &redis.XAutoClaimArgs{
				Stream: queue, Group: group, Consumer: consumer, Start: from, Count: takeCount,
			}).Result()
			if redis.HasErrorPrefix(err, "NOGROUP") { // nothing was handed out yet
				break
			}
			if err != nil {
				return wrapError("take over what a queue has handed out", err)
			}
			if from = next; next == "0-0" {
				break
			}
		}
	}
	return nil
}

// HasAllAfter tells whether everything that a partition's log ever held behind a position is still there. Unlike [Store.HasRangeAfter]
// it takes any time for a position, also one before the log began. Where the server does not count what was added
// (before Redis 7) it says no in doubt.
func (b *Store) HasAllAfter(ctx context.Context, partition int, after string) (bool, error) {
	info, err := b.streamInfo(ctx, b.keys.Log(partition))
	switch {
	case err != nil:
		return false, wrapError("find the beginning of the log", err)
	case CompareEntryIDs(info.maxDeletedID, after) > 0:
		return false, nil
	case CompareEntryIDs(info.lastID, after) <= 0, info.length > 0 && CompareEntryIDs(info.firstID, after) <= 0:
		return true, nil
	}
	return info.totalAdded == info.length, nil
}

// IsAfter tells whether a cursor lies behind a position.
func (b *Store) IsAfter(cursor, position string) bool { return CompareEntryIDs(cursor, position) > 0 }

// KnownSinks returns the names of the sinks that the log has a position for, configured or not, in their order.
func (b *Store) KnownSinks(ctx context.Context) ([]string, error) {
	all := make([]*redis.StringSliceCmd, b.keys.Partitions())
	_, err := b.client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for p := range all {
			all[p] = pipe.HKeys(ctx, b.keys.SinkPositions(p))
		}
		return nil
	})
	if err != nil {
		return nil, wrapError("list the sinks", err)
	}
	var names []string
	for _, one := range all {
		names = append(names, one.Val()...)
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}
