package redisconn

import (
	"context"

	"github.com/redis/go-redis/v9"

	"github.com/hubrelay/hubrelay/internal/streamid"
)

// StreamInfo is the result of XINFO STREAM. A stream that does not exist is empty. IDs that do not apply are
// [streamid.Zero].
type StreamInfo struct {
	// LastID is the ID that was generated last. NewestID is lower if that entry was deleted.
	LastID, FirstID, NewestID string
	// MaxDeletedID is the highest ID of an entry that was deleted, not trimmed.
	MaxDeletedID string
	Length       int64
	// TotalAdded is the number of entries ever added, or -1 before Redis 7.
	TotalAdded int64
	// Nodes is the number of nodes, which have up to about a hundred entries each. It is 0 if the server does not report it.
	Nodes int64
}

// ReadStreamInfo returns what the server knows of a stream.
func ReadStreamInfo(ctx context.Context, r Runner, key string) (StreamInfo, error) {
	info := StreamInfo{
		LastID: streamid.Zero, FirstID: streamid.Zero, NewestID: streamid.Zero, MaxDeletedID: streamid.Zero,
		TotalAdded: -1,
	}
	cmd := redis.NewSliceCmd(ctx, "XINFO", "STREAM", key)
	cmd.SetFirstKeyPos(2)
	_ = r.Process(ctx, cmd)
	reply, err := cmd.Result()
	if err != nil {
		if redis.HasErrorPrefix(err, "no such key") {
			info.TotalAdded = 0
			return info, nil
		}
		return info, err
	}
	hasFirst := false
	for i := 0; i+1 < len(reply); i += 2 {
		switch reply[i] {
		case "length":
			info.Length, _ = reply[i+1].(int64)
		case "radix-tree-keys":
			info.Nodes, _ = reply[i+1].(int64)
		case "last-generated-id":
			info.LastID, _ = reply[i+1].(string)
		case "max-deleted-entry-id":
			info.MaxDeletedID, _ = reply[i+1].(string)
		case "entries-added":
			info.TotalAdded, _ = reply[i+1].(int64)
		case "first-entry":
			hasFirst = true
			info.FirstID = entryID(reply[i+1])
		case "last-entry":
			info.NewestID = entryID(reply[i+1])
		}
	}
	if !hasFirst && info.Length > 0 { // miniredis
		info.NewestID = info.LastID
		first, err := r.XRangeN(ctx, key, "-", "+", 1).Result()
		if err != nil {
			return info, err
		}
		if len(first) == 1 {
			info.FirstID = first[0].ID
		}
	}
	return info, nil
}

// entryID returns the ID of an entry in a reply, or [streamid.Zero] if there is no entry.
func entryID(entry any) string {
	if pair, ok := entry.([]any); ok && len(pair) == 2 {
		if id, ok := pair[0].(string); ok {
			return id
		}
	}
	return streamid.Zero
}
