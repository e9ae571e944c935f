package store

import (
	"context"
	_ "embed"
	"time"

	"github.com/hubrelay/hubrelay/internal/streamid"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
)

var (
	//go:embed scripts/erasure_add.lua
	addErasureSource string

	addErasureScript = redisconn.NewScript(addErasureSource)
)

// Erasures stores which accounts were erased in the last day. Nodes discard older deliveries of these accounts.
type Erasures struct{ db }

// Add records that an account is erased, with the notifications that were stored until now. It returns the time by the clock of
// Redis. All nodes learn it within about a second. Add also works on a full Redis.
func (e Erasures) Add(ctx context.Context, account string) (now time.Time, err error) {
	ms, err := addErasureScript.Run(ctx, e.client, []string{ErasuresKey(e.keys)}, account).Int64()
	if err != nil {
		return time.Time{}, redisconn.WrapError("record the erasure of an account", err)
	}
	if err := e.signalChange(ctx); err != nil {
		return time.Time{}, err
	}
	return time.UnixMilli(ms), redisconn.WrapError("replicate the erasure", e.confirmReplicas(ctx, ErasuresKey(e.keys)))
}

// List returns the time of the last erasure of each account.
func (e Erasures) List(ctx context.Context) (map[string]time.Time, error) {
	list, err := e.client.ZRangeWithScores(ctx, ErasuresKey(e.keys), 0, -1).Result()
	if err != nil {
		return nil, redisconn.WrapError("read which accounts were erased", err)
	}
	times := make(map[string]time.Time, len(list))
	for _, z := range list {
		if account, ok := z.Member.(string); ok {
			times[account] = time.UnixMilli(int64(z.Score))
		}
	}
	return times, nil
}

// IsStoredUntil reports whether a notification with a log cursor was stored until a time, or has no cursor.
func IsStoredUntil(cursor string, at time.Time) bool {
	position, ok := streamid.ParsePosition(cursor)
	return !ok || !position.Time().After(at)
}
