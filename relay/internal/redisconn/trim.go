package redisconn

import (
	"context"
	"sync/atomic"
)

const (
	// trimInterval is the number of bytes that a node adds to a stream before it measures the stream again.
	trimInterval = 1 << 20
	// maxTrims limits the attempts to trim at once. Each assumes that entries have the same size.
	maxTrims = 8
)

// StreamTrimmer removes the oldest entries of a stream that exceeds a number of entries or bytes. It may be used concurrently.
type StreamTrimmer struct {
	conn             *Conn
	key              string
	maxLen, maxBytes int64
	untrimmed        atomic.Int64 // bytes that were added since the last measurement
}

// NewStreamTrimmer returns a trimmer whose first call of Trim measures the stream.
func NewStreamTrimmer(c *Conn, key string, maxLen, maxBytes int64) *StreamTrimmer {
	t := &StreamTrimmer{conn: c, key: key, maxLen: maxLen, maxBytes: maxBytes}
	t.untrimmed.Store(trimInterval)
	return t
}

// Trim is called after entries with a number of bytes were added. The stream may exceed its limits by about a MiB for each node.
// An error of Redis is only logged, because a later call trims again.
func (t *StreamTrimmer) Trim(ctx context.Context, added int) {
	if t.untrimmed.Add(int64(added)) < trimInterval {
		return
	}
	t.untrimmed.Store(0)
	client := t.conn.Commands()
	err := client.XTrimMaxLenApprox(ctx, t.key, t.maxLen, 0).Err()
	for range maxTrims {
		var n int64
		if err == nil {
			n, err = StreamLenForBytes(ctx, client, t.key, t.maxBytes)
		}
		if err != nil || n == 0 {
			break
		}
		err = client.XTrimMaxLen(ctx, t.key, n).Err()
	}
	if err != nil {
		t.conn.Logger().WarnContext(ctx, "stream could not be trimmed", "key", t.key, "error", err)
	}
}
