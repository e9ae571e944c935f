package redisconn

import (
	"context"
	"sync/atomic"
)

const (
	// trimInterval is the number of bytes that are added to a stream before it is measured again.
	trimInterval = 1 << 20
	// entryOverhead is the memory of an entry in bytes besides its values.
	entryOverhead = 100
	// memoryDivisor limits a stream to a sixteenth of the memory of Redis, because a small one needs room for others.
	memoryDivisor = 16
)

// MaxTrims limits the attempts to trim a stream to a number of bytes at once. Each assumes that entries have the same size, and
// removes about half of the entries if many small ones are before a few large ones.
const MaxTrims = 16

// StreamTrimmer removes the oldest entries of a stream that exceeds a number of entries or bytes. It may be used concurrently.
type StreamTrimmer struct {
	conn             *Conn
	key              string
	maxLen, maxBytes int64
	untrimmed        atomic.Int64 // bytes that were added since the last measurement
}

// NewStreamTrimmer returns a trimmer whose first call of Trim measures the stream. maxBytes is the limit of its memory in a
// Redis with sixteen times as much or more. In a smaller one, the limit is a sixteenth.
func NewStreamTrimmer(c *Conn, key string, maxLen, maxBytes int64) *StreamTrimmer {
	t := &StreamTrimmer{conn: c, key: key, maxLen: maxLen, maxBytes: maxBytes}
	t.untrimmed.Store(trimInterval)
	return t
}

// Trim is called after a number of entries were added, whose values have size bytes. The stream may exceed its limits by about a
// MiB for each trimmer. An error of Redis is only logged, because the next call trims again.
func (t *StreamTrimmer) Trim(ctx context.Context, entries, size int) {
	if t.untrimmed.Add(int64(size+entries*entryOverhead)) < trimInterval {
		return
	}
	t.untrimmed.Store(0)
	client := t.conn.Commands()
	maxBytes := t.maxBytes
	if memory, err := t.conn.Memory(ctx); err == nil && memory.Max > 0 { // the user may be denied INFO
		maxBytes = min(maxBytes, memory.Max/memoryDivisor)
	}
	err := client.XTrimMaxLenApprox(ctx, t.key, t.maxLen, 0).Err()
	for range MaxTrims {
		var n int64
		if err == nil {
			n, err = StreamLenForBytes(ctx, client, t.key, maxBytes)
		}
		if err != nil || n == 0 {
			break
		}
		err = client.XTrimMaxLen(ctx, t.key, n).Err()
	}
	if err != nil {
		t.untrimmed.Store(trimInterval)
		t.conn.Logger().WarnContext(ctx, "stream could not be trimmed", "key", t.key, "error", err)
	}
}
