package backbone

import (
	"context"
	"time"
)

// Trim removes the entries of a partition's log that are older than history and beyond the newest maxLen, but only
// those that the dispatcher has left behind. Zero lifts either bound. Removal is by whole nodes of Redis, so up to
// about a hundred entries more may stay.
func (b *Store) Trim(ctx context.Context, partition int, history time.Duration, maxLen int64) error {
	// One approximate trim removes at most some ten thousand entries (its default LIMIT), so that a long backlog goes in
	// bites that hold nobody up.
	for {
		removed, _, err := b.trimPartition(ctx, partition, history, maxLen)
		if err != nil || removed == 0 {
			return wrapError("trim the log", err)
		}
	}
}

func (b *Store) trimPartition(ctx context.Context, partition int, history time.Duration, maxLen int64) (removed, lag int64, err error) {
	keys := []string{b.keys.Log(partition), b.keys.DispatchPosition(partition)}
	reply, err := trimScript.Run(ctx, b.client, keys, history.Milliseconds(), maxLen).Int64Slice()
	if err != nil {
		return 0, 0, err
	}
	if len(reply) != 2 {
		return 0, 0, errReply
	}
	return reply[0], reply[1], nil
}

// Lag is how many entries of a partition's log the dispatcher has not reached yet, or -1 where the server cannot tell
// (before Redis 7, when there are a thousand or more).
func (b *Store) Lag(ctx context.Context, partition int) (int64, error) {
	_, lag, err := b.trimPartition(ctx, partition, 0, 0)
	return lag, wrapError("measure the dispatcher's lag", err)
}
