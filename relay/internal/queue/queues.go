package queue

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hubrelay/hubrelay/internal/streamid"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/eventlog"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
	"github.com/hubrelay/hubrelay/relay/internal/resp"
)

// Stats describes the queues of a sink, including messages in flight.
type Stats struct {
	Length int64
	// OldestAge is the time since the oldest entry was added to the log, by the clock of Redis. It is 0 for an empty
	// queue.
	OldestAge time.Duration
	// CatchingUp is set if the log has further events for the sink, because its queue was full or the sink was absent.
	CatchingUp bool
}

// Stats returns the statistics of each sink over all partitions. It also sends a command if sinks is empty, so an error
// always means that Redis is unreachable.
func (s *Store) Stats(ctx context.Context, sinks []string) ([]Stats, error) {
	const operation = "measure the queues"
	partitions := s.keys.Partitions()
	replies := make([]*redis.Cmd, 0, len(sinks)*partitions)
	_, err := s.conn.Commands().Pipelined(ctx, func(pipe redis.Pipeliner) error {
		pipe.Exists(ctx, redisconn.PartitionsKey(s.keys))
		for _, sink := range sinks {
			for p, key := range Keys(s.keys, sink) {
				replies = append(replies, pipe.Eval(ctx, statsSource, []string{key, SinkPositionsKey(s.keys, p)}, sink))
			}
		}
		return nil
	})
	if err != nil {
		return nil, redisconn.WrapError(operation, err)
	}
	list := make([]Stats, len(sinks))
	for i, reply := range replies {
		n, err := reply.Int64Slice()
		if err == nil && len(n) != 3 {
			err = redisconn.ErrUnexpectedReply
		}
		if err != nil {
			return nil, redisconn.WrapError(operation, err)
		}
		stats := &list[i/partitions]
		stats.Length += n[0]
		stats.CatchingUp = stats.CatchingUp || n[2] == 1
		stats.OldestAge = max(stats.OldestAge, time.Duration(n[1])*time.Millisecond, 0)
	}
	return list, nil
}

// Queued reports for each log cursor whether a sink's queue still has that entry.
func (s *Store) Queued(ctx context.Context, partition int, sink string, cursors []string) ([]bool, error) {
	args := make([]any, len(cursors))
	for i, c := range cursors {
		args[i] = c
	}
	keys := []string{Key(s.keys, sink, partition)}
	reply, err := queuedScript.Run(ctx, s.conn.Commands(), keys, args...).Int64Slice()
	if err == nil && len(reply) != len(cursors) {
		err = redisconn.ErrUnexpectedReply
	}
	if err != nil {
		return nil, redisconn.WrapError("search a queue", err)
	}
	queued := make([]bool, len(reply))
	for i, n := range reply {
		queued[i] = n == 1
	}
	return queued, nil
}

// FindNear finds the entry of a sink's queue with an ID that was stored in the log about at a time. See [eventlog.FindNear].
func (s *Store) FindNear(
	ctx context.Context, sink, id string, at time.Time,
) (n relay.Notification, partition int, found bool, err error) {
	e, partition, found, err := eventlog.FindNear(ctx, s.conn, Keys(s.keys, sink), id, at)
	return e.Notification, partition, found, err
}

// Drop removes the entry with a log cursor from a sink's queue. If a consumer of the group has read the entry, Drop keeps it
// and isRead is true. Without a group, Drop always removes it.
func (s *Store) Drop(
	ctx context.Context, partition int, sink, group, cursor string,
) (isDropped, isRead bool, err error) {
	outcome, err := dropScript.Run(ctx, s.conn.Commands(), []string{Key(s.keys, sink, partition)}, group, cursor).Text()
	if err != nil {
		return false, false, redisconn.WrapError("drop an entry of a queue", err)
	}
	return outcome == "changed", outcome == "running", nil
}

// claimCount is the number of pending entries that one command claims.
const claimCount = 1000

// ClaimPending assigns all pending entries of a sink's queues to the consumer, regardless of their consumer and idle
// time. A subscriber with that name then begins with these entries in queue order. Call it only if no other process
// works on the sink.
func (s *Store) ClaimPending(ctx context.Context, sink, group, consumer string) error {
	for _, key := range Keys(s.keys, sink) {
		for start := streamid.Zero; start != ""; {
			_, next, err := s.conn.Commands().XAutoClaimJustID(ctx, &redis.XAutoClaimArgs{
				Stream: key, Group: group, Consumer: consumer, Start: start, Count: claimCount,
			}).Result()
			if redis.HasErrorPrefix(err, "NOGROUP") { // no entry was ever read
				break
			}
			if err != nil {
				return redisconn.WrapError("claim the pending entries of a queue", err)
			}
			if start = next; next == streamid.Zero {
				break
			}
		}
	}
	return nil
}

// Sizes returns the memory of the queue of each sink in a partition, in bytes.
func (s *Store) Sizes(ctx context.Context, partition int, sinks []string) ([]int64, error) {
	keys := make([]string, len(sinks))
	for i, sink := range sinks {
		keys[i] = Key(s.keys, sink, partition)
	}
	return redisconn.KeySizes(ctx, s.conn.Commands(), keys)
}

// CountAccounts returns the number of entries of each account in a sink's queue in a partition.
func (s *Store) CountAccounts(ctx context.Context, sink string, partition int) (map[string]int64, error) {
	counts := make(map[string]int64)
	key := Key(s.keys, sink, partition)
	for next := "-"; next != ""; {
		var err error
		if next, err = s.countAccountsFrom(ctx, key, next, redisconn.MaxScanEntries, counts); err != nil {
			return nil, err
		}
	}
	return counts, nil
}

// countAccountsFrom adds up to maxEntries entries from an ID to counts. It returns where the rest begins, or "" at the end.
func (s *Store) countAccountsFrom(
	ctx context.Context, key, id string, maxEntries int, counts map[string]int64,
) (next string, err error) {
	reply, err := countAccountsScript.Run(ctx, s.conn.Commands(), []string{key}, id, maxEntries, redisconn.MaxScanBytes).Slice()
	if err == nil && len(reply)%2 == 0 {
		err = redisconn.ErrUnexpectedReply
	}
	if err != nil {
		return "", redisconn.WrapError("count the accounts in a queue", err)
	}
	next, _ = reply[0].(string)
	for i := 1; i < len(reply); i += 2 {
		account, _ := reply[i].(string)
		n, _ := reply[i+1].(int64)
		counts[account] += n
	}
	return next, nil
}

// DropNewest removes up to count entries from a sink's queue in a partition, but at most atMost[account] of each account, and
// none that a consumer has read. The newest are removed first. The result has no data. It is also valid after an error.
func (s *Store) DropNewest(
	ctx context.Context, sink string, partition int, count int64, atMost map[string]int64,
) ([]relay.Notification, error) {
	keys, atMost := []string{Key(s.keys, sink, partition)}, maps.Clone(atMost)
	var dropped []relay.Notification
	for last := "+"; last != "" && count > 0; {
		args := []any{last, redisconn.MaxScanEntries, redisconn.MaxScanBytes, count}
		for account, n := range atMost {
			args = append(args, account, n)
		}
		reply, err := dropNewestScript.Run(ctx, s.conn.Commands(), keys, args...).StringSlice()
		if err == nil && len(reply)%5 != 1 {
			err = redisconn.ErrUnexpectedReply
		}
		if err != nil {
			return dropped, redisconn.WrapError("drop the newest entries of a queue", err)
		}
		last = reply[0]
		for entry := range slices.Chunk(reply[1:], 5) {
			n := relay.Notification{Cursor: entry[0], ID: entry[1], Topic: entry[2], Hub: entry[3], Account: entry[4]}
			dropped = append(dropped, n)
			atMost[n.Account]--
			count--
		}
	}
	return dropped, nil
}

// Lengths returns the length of the queue of each sink in a partition.
func (s *Store) Lengths(ctx context.Context, partition int, sinks []string) ([]int64, error) {
	if len(sinks) == 0 {
		return nil, nil
	}
	replies := make([]*redis.IntCmd, len(sinks))
	_, err := s.conn.Commands().Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for i, sink := range sinks {
			replies[i] = pipe.XLen(ctx, Key(s.keys, sink, partition))
		}
		return nil
	})
	if err != nil {
		return nil, redisconn.WrapError("measure the queues", err)
	}
	lengths := make([]int64, len(sinks))
	for i, reply := range replies {
		lengths[i] = reply.Val()
	}
	return lengths, nil
}

// DropOldest removes the oldest entries of a sink's queue in a partition until at most maxLen are left. It returns how many of them
// no consumer had read. Consumers deliver the others, unless their node ends first.
func (s *Store) DropOldest(ctx context.Context, sink string, partition int, maxLen int64) (dropped int64, err error) {
	_, dropped, err = s.dropOldest(ctx, sink, partition, maxLen)
	return dropped, err
}

// pendingSize is the memory of an entry in the list of pending entries, in bytes.
const pendingSize = 600

// DropOldestBytes is DropOldest until the entries of the queue need at most maxBytes of memory.
func (s *Store) DropOldestBytes(ctx context.Context, sink string, partition int, maxBytes int64) (dropped int64, err error) {
	key := Key(s.keys, sink, partition)
	groups, err := s.conn.Commands().XInfoGroups(ctx, key).Result()
	if err != nil {
		if redis.HasErrorPrefix(err, "no such key") {
			return 0, nil
		}
		return 0, redisconn.WrapError("measure a queue", err)
	}
	for _, group := range groups {
		maxBytes += group.Pending * pendingSize
	}
	err = redisconn.TrimToBytes(ctx, s.conn.Commands(), redisconn.ByteLimit{
		Key: key, MaxBytes: maxBytes, IsExact: true, Trim: func(maxLen int64) (int64, error) {
			removed, n, err := s.dropOldest(ctx, sink, partition, maxLen)
			dropped += n
			return removed, err
		},
	})
	return dropped, err
}

// dropOldest also returns the number of all entries that were removed.
func (s *Store) dropOldest(ctx context.Context, sink string, partition int, maxLen int64) (removed, dropped int64, err error) {
	keys := []string{Key(s.keys, sink, partition), eventlog.DispatchPositionKey(s.keys, partition)}
	reply, err := dropOldestScript.Run(ctx, s.conn.Commands(), keys, maxLen).Int64Slice()
	if err != nil {
		return 0, 0, redisconn.WrapError("drop the oldest entries of a queue", err)
	}
	if len(reply) != 2 {
		return 0, 0, redisconn.ErrUnexpectedReply
	}
	return reply[0], reply[1], nil
}

// maxListBytes is the number of bytes after which a page of [Store.List] ends.
const maxListBytes = 16 << 20

// List returns up to limit entries of a sink's queue in a partition after a log cursor, the oldest first. "" is the beginning.
// If notifications are large, the result may be shorter although more follow. It is empty only at the end.
func (s *Store) List(ctx context.Context, partition int, sink, after string, limit int) ([]relay.Notification, error) {
	start := "-"
	if after != "" {
		start = "(" + after
	}
	entries, err := resp.ReadEntries(ctx, s.conn.Commands(), maxListBytes,
		"XRANGE", Key(s.keys, sink, partition), start, "+", "COUNT", limit)
	if err != nil {
		return nil, redisconn.WrapError("list a queue", err)
	}
	return eventlog.ToNotifications(entries), nil
}
