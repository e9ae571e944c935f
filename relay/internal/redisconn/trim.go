package redisconn

import (
	"context"
	_ "embed" // the script
	"errors"
	"math"
	"strings"
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
	// maxTrims limits the calls of Trim by [TrimToBytes].
	maxTrims = 100
	// firstTrim is the maximum number of entries that the first call removes if the number is estimated. Each further call
	// removes at most trimGrowth times as many as the previous one.
	firstTrim  = 16
	trimGrowth = 8
	// maxNodeEntries is more than the number of entries in a node of a stream, and smallNode more than the size of a node of several
	// entries, in bytes, unless Redis is configured otherwise.
	maxNodeEntries = 128
	smallNode      = 8 << 10
	// maxCounted limits what is read for one call of Trim, in bytes.
	maxCounted = 16 << 20
)

// MaxScanEntries and MaxScanBytes limit the number and size of the entries that one script reads, so other commands run in between.
const (
	MaxScanEntries = 500
	MaxScanBytes   = 1 << 20
)

var (
	// ScanLua defines the function scan of scripts that read entries of a stream.
	//
	//go:embed scripts/scan.lua
	ScanLua string
	//go:embed scripts/count_oldest.lua
	countOldestSource string

	countOldestScript = NewScript(ScanLua + countOldestSource)
)

// ByteLimit is the limit of a stream in bytes.
type ByteLimit struct {
	Key      string
	MaxBytes int64
	// IsExact makes [TrimToBytes] read all entries that it removes, which takes Redis about 4 µs for each. Otherwise, if most
	// entries are small, it estimates how many it must remove, and may remove more than needed.
	IsExact bool
	// Trim removes the oldest entries, but keeps maxLen. It may remove only whole nodes of the stream, which have about a
	// hundred entries if those are small.
	Trim func(maxLen int64) (removed int64, err error)
}

// TrimToBytes trims a stream until it needs at most a number of bytes, or until Trim removes nothing. The sizes of
// entries may differ widely, so it reads the oldest ones to find how many to remove.
func TrimToBytes(ctx context.Context, client redis.UniversalClient, l ByteLimit) error {
	most := int64(firstTrim)
	for range maxTrims {
		size, err := measureStream(ctx, client, l.Key)
		if err != nil || size.bytes <= l.MaxBytes || size.entries == 0 {
			return err
		}
		excess, n := size.bytes-l.MaxBytes, int64(0)
		if l.IsExact || size.hasLarge() {
			n, err = countOldest(ctx, client, l.Key, excess)
		} else {
			n = min(int64(math.Ceil(float64(excess)/float64(size.bytes)*float64(size.entries))), most)
		}
		if err != nil {
			return err
		}
		removed, err := l.Trim(max(size.entries-n, 1))
		for err == nil && removed == 0 && n < maxNodeEntries { // n is less than a node
			n += firstTrim
			removed, err = l.Trim(max(size.entries-n, 1))
		}
		if err != nil || removed == 0 {
			return err
		}
		most = removed * trimGrowth
	}
	return nil
}

// streamSize is the size of a stream. nodes is 0 if the server does not report it.
type streamSize struct{ bytes, entries, nodes int64 }

// hasLarge reports whether more than an eighth of a stream may consist of large entries, which have a node each.
func (s streamSize) hasLarge() bool { return s.nodes == 0 || s.bytes-s.nodes*smallNode > s.bytes/8 }

// measureStream returns the size of a stream, 0 of a missing one.
func measureStream(ctx context.Context, client redis.UniversalClient, key string) (s streamSize, err error) {
	s.bytes, err = client.MemoryUsage(ctx, key, streamSamples).Result()
	if err != nil && strings.HasPrefix(err.Error(), "ERR syntax") { // the server of memory: takes no samples
		s.bytes, err = client.MemoryUsage(ctx, key).Result()
	}
	if errors.Is(err, redis.Nil) {
		return s, nil
	}
	if err == nil {
		var info StreamInfo
		info, err = ReadStreamInfo(ctx, client, key)
		s.entries, s.nodes = info.Length, info.Nodes
	}
	return s, WrapError("measure a stream", err)
}

// countOldest returns how many of the oldest entries of a stream need a number of bytes together, or the first
// 16 MiB. Their sizes are upper bounds.
func countOldest(ctx context.Context, client redis.UniversalClient, key string, bytes int64) (n int64, err error) {
	bytes = min(bytes, maxCounted)
	for first := "-"; bytes > 0 && first != ""; {
		reply, err := countOldestScript.Run(ctx, client, []string{key}, first, min(bytes, MaxScanBytes), MaxScanEntries).Slice()
		if err != nil {
			return 0, WrapError("count the oldest entries of a stream", err)
		}
		if len(reply) != 3 {
			return 0, ErrUnexpectedReply
		}
		count, _ := reply[0].(int64)
		size, _ := reply[1].(int64)
		first, _ = reply[2].(string)
		n, bytes = n+count, bytes-size
		if count == 0 {
			break
		}
	}
	return n, nil
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
		err = TrimToBytes(ctx, client, ByteLimit{Key: t.key, MaxBytes: maxBytes, Trim: func(maxLen int64) (int64, error) {
			return client.XTrimMaxLen(ctx, t.key, maxLen).Result()
		}})
	}
	if err != nil {
		t.untrimmed.Store(trimInterval)
		t.conn.Logger().WarnContext(ctx, "stream could not be trimmed", "redis_key", t.key, "error", err)
	}
}
