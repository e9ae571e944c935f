package eventlog

import (
	"context"
	"time"

	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
)

// Retention limits the log of a partition. 0 disables a limit.
type Retention struct {
	History  time.Duration // maximum age
	MaxLen   int64         // maximum number of entries
	MaxBytes int64         // maximum memory in Redis
	// KeepAfter is the log cursor after which all entries stay, because sinks still have to get them, or "".
	KeepAfter string
	// Generation is that of the dispatcher that knows KeepAfter. If it is not the current one, nothing is trimmed, because
	// another dispatcher may know other sinks. 0 is not checked.
	Generation int64
}

// Trim removes the entries of a partition's log that exceed its retention, but only entries that the dispatcher has
// processed. Redis removes whole nodes of the stream, so about a hundred entries more may remain.
func (l *Log) Trim(ctx context.Context, partition int, r Retention) error {
	_, err := l.trimToLen(ctx, partition, r, r.MaxLen)
	if err == nil && r.MaxBytes > 0 {
		err = redisconn.TrimToBytes(ctx, l.conn.Commands(), redisconn.ByteLimit{
			Key: Key(l.keys, partition), MaxBytes: r.MaxBytes, Trim: func(maxLen int64) (int64, error) {
				return l.trimToLen(ctx, partition, r, maxLen)
			},
		})
	}
	return redisconn.WrapError("trim the log", err)
}

// trimToLen removes at most 10,000 entries at once, so other commands run in between.
func (l *Log) trimToLen(ctx context.Context, partition int, r Retention, maxLen int64) (removed int64, err error) {
	for {
		n, _, err := l.runTrim(ctx, partition, r, maxLen)
		if err != nil || n == 0 {
			return removed, err
		}
		removed += n
	}
}

func (l *Log) runTrim(
	ctx context.Context, partition int, r Retention, maxLen int64,
) (removed, lag int64, err error) {
	keys := []string{Key(l.keys, partition), DispatchPositionKey(l.keys, partition)}
	reply, err := trimScript.Run(ctx, l.conn.Commands(), keys, r.History.Milliseconds(), maxLen, r.KeepAfter, r.Generation).Int64Slice()
	if err != nil {
		return 0, 0, err
	}
	if len(reply) != 2 {
		return 0, 0, redisconn.ErrUnexpectedReply
	}
	return reply[0], reply[1], nil
}

// Lag returns the number of entries of a partition's log that the dispatcher has not processed. It is -1 if the server
// does not count entries, before Redis 7, and there are at least a thousand.
func (l *Log) Lag(ctx context.Context, partition int) (int64, error) {
	_, lag, err := l.runTrim(ctx, partition, Retention{}, 0)
	return lag, redisconn.WrapError("measure the lag of the dispatcher", err)
}
