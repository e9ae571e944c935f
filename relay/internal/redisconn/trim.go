package redisconn

import (
	"context"
	"math"
	"sync/atomic"

	"github.com/redis/go-redis/v9"
)

const (
	// trimInterval is the number of bytes that are added to a stream before it is measured again.
	trimInterval = 1 << 20
	// entryOverhead is the memory of an entry in bytes besides its values.
	entryOverhead = 100
	// memoryDivisor limits a stream to a sixteenth of the memory of Redis, because a small one needs room for others.
	memoryDivisor = 16
)

const (
	// maxTrims limits the calls of trim by [TrimToBytes], which take about a second in all.
	maxTrims = 100
	// firstTrim is the maximum number of entries that the first call removes. Each further one removes at most trimGrowth times as
	// many as the last.
	firstTrim  = 16
	trimGrowth = 8
	// maxNodeEntries is more than the number of entries in a node of a stream, unless Redis is configured otherwise.
	maxNodeEntries = 128
)

// TrimToBytes calls trim with a number of entries to keep until the stream needs at most maxBytes of memory, or until trim removes
// nothing. The oldest entries may be much larger than the others, so it removes few of them first, and measures the stream after
// each call. trim may remove only whole nodes of the stream, which have about a hundred entries if those are small.
func TrimToBytes(
	ctx context.Context, client redis.Cmdable, key string, maxBytes int64, trim func(maxLen int64) (removed int64, err error),
) error {
	size, err := measureStream(ctx, client, key)
	if err != nil {
		return err
	}
	// entrySize is the average size of the entries that were removed last.
	least, most, entrySize := int64(1), int64(firstTrim), 0.0
	for range maxTrims {
		if size.bytes <= maxBytes || size.entries == 0 {
			return nil
		}
		average := float64(size.bytes) / float64(size.entries)
		n := int64(math.Ceil(float64(size.bytes-maxBytes) / max(average, entrySize)))
		n = max(min(n, most), least)
		removed, err := trim(max(size.entries-n, 1))
		if err != nil || removed == 0 && n >= maxNodeEntries {
			return err
		}
		if removed == 0 {
			least = n + firstTrim
			continue
		}
		before := size.bytes
		if size, err = measureStream(ctx, client, key); err != nil {
			return err
		}
		least, most, entrySize = 1, removed*trimGrowth, float64(before-size.bytes)/float64(removed)
	}
	return nil
}

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
	if err == nil {
		err = TrimToBytes(ctx, client, t.key, maxBytes, func(maxLen int64) (int64, error) {
			return client.XTrimMaxLen(ctx, t.key, maxLen).Result()
		})
	}
	if err != nil {
		t.untrimmed.Store(trimInterval)
		t.conn.Logger().WarnContext(ctx, "stream could not be trimmed", "key", t.key, "error", err)
	}
}
