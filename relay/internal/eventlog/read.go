package eventlog

import (
	"context"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hubrelay/hubrelay/internal/streamid"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
	"github.com/hubrelay/hubrelay/relay/internal/resp"
)

const (
	readLogOperation  = "read the log"
	readInfoOperation = "read the state of the log"
)

// ReadFrom returns up to count notifications after a position in a partition's log, for a reader that resumes there. If
// after has a hash, it must match the entry.
//
// Unless lost is set, from is the requested position, with the hash of the entry there if it still exists. With lost,
// entries after the position may have been trimmed, or the log lost its newest entries in a failover, and list begins
// after from. If the entry at the position no longer exists, ReadFrom reports a loss, because entries after it may be
// missing too. If notifications are large, list may be shorter than count although more follow.
func (l *Log) ReadFrom(ctx context.Context, partition int, after streamid.Position, count int) (
	from streamid.Position, lost bool, list []relay.Notification, err error,
) {
	key, id := Key(l.keys, partition), after.String()
	entries, err := resp.ReadEntries(ctx, l.conn.Commands(), maxReplyBytes, "XRANGE", key, id, "+", "COUNT", count+1)
	if err != nil {
		return streamid.Position{}, false, nil, redisconn.WrapError(readLogOperation, err)
	}
	list = ToNotifications(entries)
	from = streamid.Position{MS: after.MS, Seq: after.Seq}
	if len(list) > 0 {
		if entries[0].ID == id {
			from, _ = streamid.ParseEntry(id, list[0].ID)
			if !after.Matches(from) { // after a failover, another entry got the same ID
				return after.Predecessor(), true, list, nil
			}
			return from, false, list[1:], nil
		}
		if positionBefore(entries[0].ID).Compare(after) == 0 {
			return from, false, list, nil
		}
	}
	info, err := l.streamInfo(ctx, key)
	if err != nil {
		return streamid.Position{}, false, nil, redisconn.WrapError(readInfoOperation, err)
	}
	last, _ := streamid.ParsePosition(info.LastID)
	order := last.Compare(after)
	switch {
	case order == 0:
		return from, false, nil, nil
	case id == streamid.Zero && info.TotalAdded >= 0 && info.TotalAdded == info.Length: // no entry was ever removed
		return from, false, list, nil
	case order < 0 || len(list) == 0:
		return last, true, nil, nil
	default:
		return positionBefore(entries[0].ID), true, list, nil
	}
}

// PositionsBefore returns the position of the last entry before a time, in each of count partitions from first on. It is the
// beginning of the log if there is no such entry.
func (l *Log) PositionsBefore(ctx context.Context, first, count int, t time.Time) ([]streamid.Position, error) {
	positions := make([]streamid.Position, count)
	if t.UnixMilli() <= 0 {
		return positions, nil
	}
	end := strconv.FormatInt(t.UnixMilli()-1, 10) // the last sequence number of this millisecond
	oldest, newest := make([]*redis.XMessageSliceCmd, count), make([]*redis.XMessageSliceCmd, count)
	_, err := l.conn.Commands().Pipelined(ctx, func(p redis.Pipeliner) error {
		for i := range oldest {
			oldest[i] = p.XRangeN(ctx, Key(l.keys, first+i), "-", end, 1)
		}
		return nil
	})
	if err == nil {
		_, err = l.conn.Commands().Pipelined(ctx, func(p redis.Pipeliner) error {
			for i := range newest {
				if len(oldest[i].Val()) > 0 { // otherwise XREVRANGE would search the whole log
					newest[i] = p.XRevRangeN(ctx, Key(l.keys, first+i), end, "-", 1)
				}
			}
			return nil
		})
	}
	if err != nil {
		return nil, redisconn.WrapError(readLogOperation, err)
	}
	for i, c := range newest {
		if c != nil && len(c.Val()) > 0 {
			e := c.Val()[0]
			id, _ := e.Values[resp.FieldID].(string)
			positions[i], _ = streamid.ParseEntry(e.ID, id)
		}
	}
	return positions, nil
}

// Range returns up to count notifications after a position in a partition's log. "" is the beginning. If notifications are
// large, the result may be shorter although more follow. It is empty only if there are no more. A caller that reads much
// uses a [ReadSize] for count.
func (l *Log) Range(ctx context.Context, partition int, after string, count int) ([]relay.Notification, error) {
	if after == "" {
		after = streamid.Zero
	}
	entries, err := resp.ReadEntries(ctx, l.conn.Commands(), maxReplyBytes, "XRANGE", Key(l.keys, partition), "("+after, "+", "COUNT", count)
	if err != nil {
		return nil, redisconn.WrapError(readLogOperation, err)
	}
	return ToNotifications(entries), nil
}

// Entry is a notification with its publisher.
type Entry struct {
	relay.Notification
	Publisher Publisher
}

// ReadSize adapts the number of entries of a read to their size, because Redis builds a reply in its memory before it
// sends it. It may be used concurrently.
type ReadSize struct {
	entryBytes atomic.Int64 // size of the largest entry of recent replies, or 0
}

const (
	targetReplyBytes  = 2 << 20
	firstReplyEntries = 16
	minReplyEntries   = 8
	maxSearchEntries  = 250
)

// NextCount returns the number of entries of the next read, at most limit.
func (s *ReadSize) NextCount(limit int) int {
	n := s.entryBytes.Load()
	if n == 0 {
		return min(firstReplyEntries, limit)
	}
	return min(int(max(minReplyEntries, targetReplyBytes/n)), limit)
}

// Record records the size of the largest entry of a read, in bytes. The count increases slowly after large entries, because
// others may follow.
func (s *ReadSize) Record(largest int) {
	s.entryBytes.Store(max(s.entryBytes.Load()*7/8, int64(largest), 1))
}

// ReadBefore returns up to count entries of a partition's log, the newest first. end is a stream ID, which the result
// includes, or excludes if end starts with "(". "+" is the end of the log. If notifications are large, the result may be
// shorter than count although more follow. It is empty only if there are no more.
func (l *Log) ReadBefore(ctx context.Context, partition int, end string, count int) ([]Entry, error) {
	count = l.searched.NextCount(min(count, maxSearchEntries))
	entries, err := resp.ReadEntriesBack(ctx, l.conn.Commands(), maxReplyBytes, Key(l.keys, partition), end, count)
	if err != nil {
		return nil, redisconn.WrapError(readLogOperation, err)
	}
	l.searched.Record(resp.LargestBody(entries))
	list := make([]Entry, len(entries))
	for i, e := range entries {
		list[i] = Entry{Notification: toNotification(e), Publisher: publisherOf(e)}
	}
	return list, nil
}

// The time around that of an ID in which [FindNear] searches. Most events are stored within a second, but a publisher may
// wait for Redis, and the clock of Redis may differ from that of the node.
const (
	nearTime    = 1500 * time.Millisecond
	maxNearTime = 15 * time.Second
)

// FindNear finds the entry with an ID that was stored about at a time. It reads up to half a minute of the log of all
// partitions, until ctx ends.
func (l *Log) FindNear(ctx context.Context, id string, at time.Time) (e Entry, partition int, found bool, err error) {
	keys := make([]string, l.keys.Partitions())
	for partition := range keys {
		keys[partition] = Key(l.keys, partition)
	}
	return FindNear(ctx, l.conn, keys, id, at)
}

// FindNear is [Log.FindNear] for other streams with entries of the log. index is that of the key.
func FindNear(
	ctx context.Context, c *redisconn.Conn, keys []string, id string, at time.Time,
) (e Entry, index int, found bool, err error) {
	for _, window := range []struct{ from, to time.Duration }{{0, nearTime}, {nearTime, maxNearTime}, {-maxNearTime, 0}} {
		for index, key := range keys {
			from := strconv.FormatInt(max(at.Add(window.from).UnixMilli(), 0), 10)
			to := strconv.FormatInt(max(at.Add(window.to).UnixMilli(), 0), 10)
			e, found, err := findBetween(ctx, c, key, id, from, to)
			if found || err != nil {
				return e, index, found, err
			}
		}
	}
	return Entry{}, 0, false, nil
}

func findBetween(ctx context.Context, c *redisconn.Conn, key, id, from, to string) (e Entry, found bool, err error) {
	var size ReadSize
	for {
		entries, err := resp.ReadEntries(ctx, c.Commands(), maxReplyBytes, "XRANGE", key, from, to, "COUNT", size.NextCount(maxSearchEntries))
		if err != nil || len(entries) == 0 {
			return Entry{}, false, redisconn.WrapError(readLogOperation, err)
		}
		size.Record(resp.LargestBody(entries))
		for _, e := range entries {
			if n := toNotification(e); n.ID == id {
				return Entry{Notification: n, Publisher: publisherOf(e)}, true, nil
			}
		}
		from = "(" + entries[len(entries)-1].ID
	}
}

// HasRangeAfter reports whether a partition's log still has all entries after a position that a reader has reached. It
// returns false in doubt: if the entry at the position was trimmed, entries after it may have been trimmed too.
func (l *Log) HasRangeAfter(ctx context.Context, partition int, after string) (bool, error) {
	info, err := l.streamInfo(ctx, Key(l.keys, partition))
	if err != nil {
		return false, redisconn.WrapError(readInfoOperation, err)
	}
	switch order := streamid.Compare(info.LastID, after); {
	case order < 0:
		return false, nil
	case order == 0:
		return true, nil
	}
	return !lostAfter(info, after, -1, streamid.Zero), nil
}

// HasAllAfter reports whether a partition's log still has every entry that it ever had after a position. Unlike
// [Log.HasRangeAfter], it accepts any position, even one before the first entry. It returns false in doubt if the
// server does not count entries, before Redis 7.
func (l *Log) HasAllAfter(ctx context.Context, partition int, after string) (bool, error) {
	info, err := l.streamInfo(ctx, Key(l.keys, partition))
	switch {
	case err != nil:
		return false, redisconn.WrapError(readInfoOperation, err)
	case streamid.Compare(info.MaxDeletedID, after) > 0:
		return false, nil
	case streamid.Compare(info.LastID, after) <= 0, info.Length > 0 && streamid.Compare(info.FirstID, after) <= 0:
		return true, nil
	}
	return info.TotalAdded == info.Length, nil
}

func (l *Log) streamInfo(ctx context.Context, key string) (redisconn.StreamInfo, error) {
	return redisconn.ReadStreamInfo(ctx, l.conn.Commands(), key)
}

// lostAfter reports whether entries after a position are missing from a log whose last entry is higher. added is the
// number of entries that the log had received up to the position, or -1 if unknown. Deletions up to knownDeletion were
// reported before.
func lostAfter(info redisconn.StreamInfo, position string, added int64, knownDeletion string) bool {
	if added >= 0 && info.TotalAdded >= 0 && info.TotalAdded < added {
		return true // the log lost entries, and new ones were written since
	}
	deleted := info.MaxDeletedID
	if streamid.Compare(deleted, position) > 0 && streamid.Compare(deleted, knownDeletion) > 0 {
		return true
	}
	if info.Length > 0 && streamid.Compare(info.FirstID, position) <= 0 {
		return false
	}
	if added >= 0 && info.TotalAdded >= 0 {
		return info.TotalAdded-info.Length != added // fewer if the log was created again
	}
	// The entry at the position was trimmed, so entries after it may have been trimmed too. A reader at the very
	// beginning has not missed anything.
	return position != streamid.Zero
}

// positionBefore returns the position right before an entry.
func positionBefore(id string) streamid.Position {
	p, _ := streamid.ParsePosition(id)
	return p.Predecessor()
}
