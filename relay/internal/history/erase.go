package history

import (
	"context"
	_ "embed"
	"encoding/binary"
	"math"

	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
	"github.com/hubrelay/hubrelay/relay/internal/resp"
)

//go:embed scripts/replace_block.lua
var replaceBlockSource string

var replaceBlockScript = redisconn.NewScript(replaceBlockSource)

// erasePage is the number of blocks that are read at once.
const erasePage = 500

// EraseAccount deletes the records of an account, and of the few accounts with the same hash, and returns their number.
// Records that nodes write during the call may remain. It may be repeated after an error.
func (s *Store) EraseAccount(ctx context.Context, account string) (deleted int, err error) {
	hash := hashAccount(account)
	for shard := range shardCount {
		n, err := s.eraseShard(ctx, Key(s.keys, shard), hash)
		if deleted += n; err != nil {
			return deleted, redisconn.WrapError("erase the history of an account", err)
		}
	}
	return deleted, nil
}

func (s *Store) eraseShard(ctx context.Context, key string, hash uint32) (deleted int, err error) {
	client := s.conn.Commands()
	end, err := client.XRevRangeN(ctx, key, "+", "-", 1).Result()
	if err != nil || len(end) == 0 {
		return 0, err
	}
	for start := "-"; ; {
		// The blocks that are written below follow the end.
		entries, err := resp.ReadEntries(ctx, client, math.MaxInt, "XRANGE", key, start, end[0].ID, "COUNT", erasePage)
		if err != nil || len(entries) == 0 {
			return deleted, err
		}
		for _, e := range entries {
			rest, n := withoutAccount(e, hash)
			if n == 0 {
				continue
			}
			replaced, err := replaceBlockScript.Run(ctx, client, []string{key}, e.ID, field, rest).Int()
			if err != nil {
				return deleted, err
			}
			deleted += n * replaced
		}
		start = "(" + entries[len(entries)-1].ID
	}
}

// withoutAccount returns a block without the records of an account, or nil if it has no others, and the number of removed
// records. A malformed block is removed, because it may contain them.
func withoutAccount(e resp.Entry, hash uint32) (rest []byte, removed int) {
	b := blockOf(e)
	kept := 0
	rest = appendBlockHead(nil, b.node)
	for {
		raw, err := b.next()
		if err == nil && raw == nil {
			break
		}
		other, ok := uint32(0), false
		if err == nil {
			other, ok = raw.accountHash()
		}
		if !ok || other == hash {
			removed++
			continue
		}
		kept++
		rest = append(binary.AppendUvarint(rest, uint64(len(raw))), raw...)
	}
	if kept == 0 {
		return nil, max(removed, 1)
	}
	return rest, removed
}
