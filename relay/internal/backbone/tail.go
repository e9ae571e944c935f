package backbone

import (
	"context"
	"math"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hubrelay/hubrelay/internal/streamid"
	"github.com/hubrelay/hubrelay/relay"
)

const (
	// A read asks for up to tailMost entries and aims at no more than tailBytes.
	maxTailRead     = 512
	tailTargetBytes = 4 << 20
	// maxReplyBytes is behind how much of an answer the rest of it is asked for anew: entries that follow small ones may be large.
	maxReplyBytes = 2 * tailTargetBytes
	tailBlockTime = time.Second
)

// Batch is what one read of a partition's log brought.
type Batch struct {
	Partition int
	// Prev is the position before the batch and Last the one behind it, which the next batch has as Prev.
	Prev, Last string
	// Notifications are in log order, each with its Cursor. There may be none where Gap is set.
	Notifications []relay.Notification
	// Gap means that something between Prev and the first notification was never seen and never will be: it was trimmed
	// away unread, or the log was set back (by a restart, a failover or a flush) and goes on from Last.
	Gap bool
}

// tailReader is one reader of a partition's log.
type tailReader struct {
	b         *Store
	partition int
	key       string
	handle    func(Batch)

	wire *respConn // nil where there is no connection
	stop func() bool
	// serverHistory is the history of the server at the other end of wire.
	serverHistory string

	position string
	// entriesSeen is how many entries the log had seen up to pos, -1 where that is not known.
	entriesSeen int64
	// gapPending waits for the next batch to be reported with.
	gapPending bool
	// lastDeletion is the newest deletion that was reported.
	lastDeletion string
	// lastNotificationID is the id of the notification at pos, empty where that is not known, and server the history it was read from.
	lastNotificationID, positionHistory string
	// recentEntries are the entries that were read last, up to pos.
	recentEntries []logEntryRef
	// readCount is how many entries the next read asks for.
	readCount int
	// checked is when the position was compared with the log last.
	checked time.Time
	// connectsSeen is the number of other connections of readers when the position was checked last, -1 where it is in doubt.
	connectsSeen int64
}

// logEntryRef is where a notification was read.
type logEntryRef struct{ pos, id string }

// TailFrom returns the current end of a partition's log, with its proof where an entry is there, and a [Store.Tail] from
// there, which sees everything that is appended from now on.
func (b *Store) TailFrom(ctx context.Context, partition int) (from streamid.Position, follow func(context.Context, func(Batch)) error, err error) {
	key := b.keys.Log(partition)
	info, err := b.streamInfo(ctx, key)
	if err != nil {
		return from, nil, wrapError("find the end of the log", err)
	}
	id, there, err := notificationAt(ctx, b.client, key, info.lastID)
	if err != nil {
		return from, nil, wrapError("read the end of the log", err)
	}
	from, _ = streamid.ParsePosition(info.lastID)
	if there {
		from.IDHash = streamid.HashID(id)
	}
	return from, func(ctx context.Context, fn func(Batch)) error {
		t := b.newTail(partition, fn)
		t.lastNotificationID = id
		return t.run(ctx, info.lastID, info.totalAdded)
	}, nil
}

// notificationAt returns the id of the notification in the entry at a position, and whether there is one.
func notificationAt(ctx context.Context, c commandRunner, key, pos string) (id string, there bool, err error) {
	list, err := c.XRangeN(ctx, key, pos, pos, 1).Result()
	if err != nil || len(list) == 0 {
		return "", false, err
	}
	id, _ = list[0].Values[fieldID].(string)
	return id, true, nil
}

// Tail calls fn with everything behind from, in order, one batch at a time, until ctx ends; then it returns ctx's
// error within [MaxBlock]; only where Redis hangs in the midst of a look at the position does it wait as long as any
// command does. [Store.TailFrom] begins at the log's end. While Redis is away Tail waits and goes on behind its
// position; entries that are lost for good it reports as a gap. fn owns the batch's slice, and what it takes long for
// makes this reader lag.
func (b *Store) Tail(ctx context.Context, partition int, from string, fn func(Batch)) error {
	return b.newTail(partition, fn).run(ctx, from, -1)
}

func (b *Store) newTail(partition int, fn func(Batch)) *tailReader {
	return &tailReader{b: b, partition: partition, key: b.keys.Log(partition), handle: fn, lastDeletion: zeroID, connectsSeen: -1, readCount: maxTailRead}
}

// run follows the log from a position, up to which it has seen added entries.
func (t *tailReader) run(ctx context.Context, from string, added int64) error {
	t.position, t.entriesSeen = from, added
	defer t.disconnect()
	wait := retryMin
	for ctx.Err() == nil {
		err := t.readOnce(ctx)
		if err == nil {
			wait = retryMin
			continue
		}
		if ctx.Err() != nil {
			break
		}
		t.b.log.WarnContext(ctx, "cannot read the log, will go on where it stopped", "partition", t.partition, "position", t.position, "error", err)
		t.connectsSeen = -1
		if !relay.Sleep(ctx, wait) {
			break
		}
		wait = min(2*wait, retryMax)
	}
	return ctx.Err()
}

// readOnce makes sure that the position still means what it meant where there is doubt, and reads once.
func (t *tailReader) readOnce(ctx context.Context) error {
	if err := t.connect(ctx); err != nil {
		return err
	}
	// A new connection may lead to a server that has lost something, and a late reader may have been overtaken.
	if now := t.b.readerConnects.Load(); t.connectsSeen != now || time.Since(t.checked) > tailBlockTime {
		if err := t.verify(ctx); err != nil {
			return err
		}
		t.connectsSeen, t.checked = now, time.Now()
	}
	list, more, err := t.read(ctx)
	if err != nil {
		return err
	}
	start := time.Now()
	if len(list) > 0 {
		prev := t.position
		t.position, t.lastNotificationID = list[len(list)-1].Cursor, list[len(list)-1].ID
		if t.entriesSeen >= 0 {
			t.entriesSeen += int64(len(list))
		}
		t.recordRecent(list)
		t.emit(Batch{Prev: prev, Last: t.position, Notifications: list})
	}
	if len(list) == 0 || more || time.Since(start) > tailBlockTime {
		t.connectsSeen = -1
	}
	return nil
}

func (t *tailReader) emit(batch Batch) {
	batch.Partition, batch.Gap = t.partition, t.gapPending
	t.gapPending = false
	t.handle(batch)
}

// Range returns up to count notifications behind a position in a partition's log.
func (b *Store) Range(ctx context.Context, partition int, after string, count int) ([]relay.Notification, error) {
	if after == "" {
		after = zeroID
	}
	entries, err := b.readRange(ctx, b.keys.Log(partition), "("+after, count, math.MaxInt)
	if err != nil {
		return nil, wrapError("read the log", err)
	}
	return notificationsOf(entries), nil
}

// HasRangeAfter tells whether everything behind a position is still in a partition's log, for a reader that comes back with a
// cursor. In doubt it says no: an entry that was trimmed away may have been followed by others.
func (b *Store) HasRangeAfter(ctx context.Context, partition int, after string) (bool, error) {
	info, err := b.streamInfo(ctx, b.keys.Log(partition))
	if err != nil {
		return false, wrapError("find the beginning of the log", err)
	}
	switch order := CompareEntryIDs(info.lastID, after); {
	case order < 0:
		return false, nil
	case order == 0:
		return true, nil
	}
	return !info.lostAfter(after, -1, zeroID), nil
}

// streamInfo is what XINFO STREAM knows. A stream that does not exist is empty.
type streamInfo struct {
	lastID, firstID, maxDeletedID string
	// newestID is the entry that is last in it: last itself, where that was not deleted.
	newestID string
	length   int64
	// totalAdded counts all entries ever added, -1 before Redis 7.
	totalAdded int64
}

// lostAfter tells whether entries behind a position are gone from a log that goes on behind it. The log had seen added entries up to
// there, -1 where that is not known, and deletions up to known are known.
func (i streamInfo) lostAfter(pos string, added int64, known string) bool {
	if added >= 0 && i.totalAdded >= 0 && i.totalAdded < added {
		return true // the log was set back, and has been written to since
	}
	if CompareEntryIDs(i.maxDeletedID, pos) > 0 && CompareEntryIDs(i.maxDeletedID, known) > 0 {
		return true
	}
	if i.length > 0 && CompareEntryIDs(i.firstID, pos) <= 0 {
		return false
	}
	if added >= 0 && i.totalAdded >= 0 {
		return i.totalAdded-i.length != added // fewer where the log was begun anew
	}
	// The entry at the position has left the log: what followed it may have left too. From the very beginning nobody
	// can have missed anything.
	return pos != zeroID
}

func (b *Store) streamInfo(ctx context.Context, key string) (streamInfo, error) {
	return streamInfoFrom(ctx, b.client, key)
}

func streamInfoFrom(ctx context.Context, c commandRunner, key string) (streamInfo, error) {
	info := streamInfo{lastID: zeroID, firstID: zeroID, maxDeletedID: zeroID, newestID: zeroID, totalAdded: -1}
	cmd := redis.NewSliceCmd(ctx, "XINFO", "STREAM", key)
	cmd.SetFirstKeyPos(2)
	_ = c.Process(ctx, cmd)
	reply, err := cmd.Result()
	if err != nil {
		if redis.HasErrorPrefix(err, "no such key") {
			info.totalAdded = 0
			return info, nil
		}
		return info, err
	}
	known := false
	for i := 0; i+1 < len(reply); i += 2 {
		switch reply[i] {
		case "length":
			info.length, _ = reply[i+1].(int64)
		case "last-generated-id":
			info.lastID, _ = reply[i+1].(string)
		case "max-deleted-entry-id":
			info.maxDeletedID, _ = reply[i+1].(string)
		case "entries-added":
			info.totalAdded, _ = reply[i+1].(int64)
		case "first-entry":
			known = true
			info.firstID = entryID(reply[i+1])
		case "last-entry":
			info.newestID = entryID(reply[i+1])
		}
	}
	if !known && info.length > 0 { // miniredis
		info.newestID = info.lastID
		first, err := c.XRangeN(ctx, key, "-", "+", 1).Result()
		if err != nil {
			return info, err
		}
		if len(first) == 1 {
			info.firstID = first[0].ID
		}
	}
	return info, nil
}

// entryID is the id of an entry in an answer, begin where there is none.
func entryID(entry any) string {
	if pair, ok := entry.([]any); ok && len(pair) == 2 {
		if id, ok := pair[0].(string); ok {
			return id
		}
	}
	return zeroID
}
