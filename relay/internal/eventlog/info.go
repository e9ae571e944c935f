package eventlog

import (
	"context"
	_ "embed" // for the script
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hubrelay/hubrelay/internal/streamid"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
)

//go:embed scripts/info.lua
var infoSource string

// Info describes the log over all partitions.
type Info struct {
	// Length is the number of entries.
	Length int64
	// Stored is the number of entries ever added, or -1 before Redis 7.
	Stored int64
	// OldestAt is the time of the oldest entry. It is zero for an empty log.
	OldestAt time.Time
}

// Info returns the size of the log.
func (l *Log) Info(ctx context.Context) (Info, error) {
	const operation = "measure the log"
	replies := make([]*redis.Cmd, l.keys.Partitions())
	// EVAL instead of EVALSHA, because a pipeline cannot load a script that a restarted Redis does not have.
	if _, err := l.conn.Commands().Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for p := range replies {
			replies[p] = pipe.Eval(ctx, infoSource, []string{Key(l.keys, p)})
		}
		return nil
	}); err != nil {
		return Info{}, redisconn.WrapError(operation, err)
	}
	var sum Info
	for _, reply := range replies {
		list, _ := reply.Val().([]any)
		if len(list) != 3 {
			return Info{}, fmt.Errorf("%s: unexpected response of Redis", operation)
		}
		length, _ := list[0].(int64)
		added, _ := list[1].(int64)
		first, _ := list[2].(string)
		sum.Length += length
		if added < 0 || sum.Stored < 0 {
			sum.Stored = -1
		} else {
			sum.Stored += added
		}
		if position, ok := streamid.ParsePosition(first); ok {
			if at := position.Time(); sum.OldestAt.IsZero() || at.Before(sum.OldestAt) {
				sum.OldestAt = at
			}
		}
	}
	return sum, nil
}
