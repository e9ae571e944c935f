package store

import (
	"context"
	_ "embed"
	"strconv"
	"time"

	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
)

var (
	//go:embed scripts/erasure_add.lua
	addErasureSource string

	addErasureScript = redisconn.NewScript(addErasureSource)
)

// Erasures stores which accounts were erased in the last day. Nodes discard the deliveries of these accounts that they read
// before.
type Erasures struct{ db }

// Add records that the notifications of an account are erased that were stored until now, by the clock of Redis. Nodes know it
// within about a second. Add also works on a full Redis.
func (e Erasures) Add(ctx context.Context, account string) error {
	if err := addErasureScript.Run(ctx, e.client, []string{ErasuresKey(e.keys)}, account).Err(); err != nil {
		return redisconn.WrapError("record the erasure of an account", err)
	}
	return e.signalChange(ctx)
}

// List returns the time of the last erasure of each account.
func (e Erasures) List(ctx context.Context) (map[string]time.Time, error) {
	fields, err := e.client.HGetAll(ctx, ErasuresKey(e.keys)).Result()
	if err != nil {
		return nil, redisconn.WrapError("read which accounts were erased", err)
	}
	times := make(map[string]time.Time, len(fields))
	for account, text := range fields {
		ms, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return nil, redisconn.WrapError("read which accounts were erased", redisconn.ErrUnexpectedReply)
		}
		times[account] = time.UnixMilli(ms)
	}
	return times, nil
}
