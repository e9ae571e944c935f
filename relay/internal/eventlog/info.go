package eventlog

import (
	"context"
	"time"

	"github.com/hubrelay/hubrelay/internal/streamid"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
)

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
	var sum Info
	for partition := range l.keys.Partitions() {
		info, err := l.streamInfo(ctx, Key(l.keys, partition))
		if err != nil {
			return Info{}, redisconn.WrapError(readInfoOperation, err)
		}
		sum.Length += info.Length
		if info.TotalAdded < 0 || sum.Stored < 0 {
			sum.Stored = -1
		} else {
			sum.Stored += info.TotalAdded
		}
		if info.Length == 0 {
			continue
		}
		first, _ := streamid.ParsePosition(info.FirstID) // Redis returns valid IDs
		if at := first.Time(); sum.OldestAt.IsZero() || at.Before(sum.OldestAt) {
			sum.OldestAt = at
		}
	}
	return sum, nil
}
