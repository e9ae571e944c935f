package eventlog

import (
	"context"
	"time"

	"github.com/hubrelay/hubrelay/internal/backoff"
	"github.com/hubrelay/hubrelay/internal/streamid"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
	"github.com/hubrelay/hubrelay/relay/internal/resp"
)

const (
	// maxTailRead is the maximum number of entries of one read. A read should return at most tailTargetBytes.
	maxTailRead     = 512
	tailTargetBytes = 4 << 20
	// maxReplyBytes is the number of bytes after which a reply is abandoned and the rest is requested again. Large
	// entries may follow small ones.
	maxReplyBytes = 2 * tailTargetBytes
	tailBlockTime = time.Second
)

// Batch is the result of one read of a partition's log.
type Batch struct {
	Partition int
	// Prev is the position before the batch. Last is the position after it, which is Prev of the next batch.
	Prev, Last string
	// Notifications are in log order, each with its Cursor. The list may be empty if Gap is set.
	Notifications []relay.Notification
	// Gap means that entries between Prev and the first notification are lost for this reader. They were trimmed before
	// they were read, or the log lost its newest entries in a restart, failover or flush and continues after Last.
	Gap bool
}

// tailReader follows the log of one partition.
type tailReader struct {
	l         *Log
	partition int
	key       string
	handle    func(Batch)

	conn *resp.Conn // nil if not connected
	stop func() bool
	// serverHistory is the replication ID of the server of conn.
	serverHistory string

	position string
	// entriesSeen is the number of entries that the log had received up to position, or -1 if unknown.
	entriesSeen int64
	// gapPending means that the next batch reports a gap.
	gapPending bool
	// lastDeletion is the highest deleted ID that was reported.
	lastDeletion string
	// lastNotificationID is the ID of the notification at position, or "" if unknown. positionHistory is the
	// replication ID of the server that it was read from.
	lastNotificationID, positionHistory string
	// recentEntries are the entries that were read last, up to position.
	recentEntries []entryRef
	// readCount is the number of entries to request next.
	readCount int
	// verifiedAt is when position was last compared with the log.
	verifiedAt time.Time
	// connectsSeen is the number of connections of other readers at that time, or -1 if position must be verified
	// again.
	connectsSeen int64
}

// entryRef identifies an entry: two servers may use the same position for different notifications.
type entryRef struct{ position, id string }

// TailFrom returns the current end of a partition's log, with the hash of the last entry if it exists, and a function
// that follows the log from there.
//
// follow calls fn with all later notifications in order, one batch at a time, until ctx ends. It then returns ctx's
// error, at the latest after [redisconn.MaxBlock], or after the timeout of a command if Redis hangs while the
// position is verified. While Redis is unreachable it waits and then continues. It reports entries that are lost as a
// gap. fn owns the slice of the batch. A slow fn delays the reader.
func (l *Log) TailFrom(ctx context.Context, partition int) (
	from streamid.Position, follow func(ctx context.Context, fn func(Batch)) error, err error,
) {
	key := Key(l.keys, partition)
	info, err := l.streamInfo(ctx, key)
	if err != nil {
		return from, nil, redisconn.WrapError(readInfoOperation, err)
	}
	id, exists, err := notificationAt(ctx, l.conn.Commands(), key, info.LastID)
	if err != nil {
		return from, nil, redisconn.WrapError("read the end of the log", err)
	}
	from, _ = streamid.ParsePosition(info.LastID)
	if exists {
		from.IDHash = streamid.HashID(id)
	}
	return from, func(ctx context.Context, fn func(Batch)) error {
		t := newTailReader(l, partition, fn)
		t.lastNotificationID = id
		return t.run(ctx, info.LastID, info.TotalAdded)
	}, nil
}

// notificationAt returns the ID of the notification at a position, and whether an entry exists there.
func notificationAt(ctx context.Context, r redisconn.Runner, key, position string) (id string, exists bool, err error) {
	list, err := r.XRangeN(ctx, key, position, position, 1).Result()
	if err != nil || len(list) == 0 {
		return "", false, err
	}
	id, _ = list[0].Values[resp.FieldID].(string)
	return id, true, nil
}

func newTailReader(l *Log, partition int, fn func(Batch)) *tailReader {
	return &tailReader{
		l: l, partition: partition, key: Key(l.keys, partition), handle: fn,
		lastDeletion: streamid.Zero, connectsSeen: -1, readCount: maxTailRead,
	}
}

// run follows the log from a position. added is the number of entries that the log had received by then, or -1.
func (t *tailReader) run(ctx context.Context, from string, added int64) error {
	t.position, t.entriesSeen = from, added
	defer t.closeConn()
	retry := backoff.Backoff{Min: redisconn.RetryMin, Max: redisconn.RetryMax}
	for ctx.Err() == nil {
		err := t.readOnce(ctx)
		if err == nil {
			retry.Reset()
			continue
		}
		if ctx.Err() != nil {
			break
		}
		t.l.tailLags.setLagging(t.partition, false) // publishing to other partitions continues
		t.l.conn.Logger().WarnContext(ctx, "reading the log failed",
			"partition", t.partition, "position", t.position, "error", redisconn.WrapError(readLogOperation, err))
		t.connectsSeen = -1
		if !retry.Sleep(ctx) {
			break
		}
	}
	return ctx.Err()
}

// readOnce verifies the position if it may be wrong, and reads once.
func (t *tailReader) readOnce(ctx context.Context) error {
	if err := t.ensureConn(ctx); err != nil {
		return err
	}
	// A new connection may lead to a server that lost entries, and entries may have been trimmed before a slow reader.
	if now := t.l.conn.ReaderConnects(); t.connectsSeen != now || time.Since(t.verifiedAt) > tailBlockTime {
		if err := t.verifyOnServer(ctx); err != nil {
			return err
		}
		t.connectsSeen, t.verifiedAt = now, time.Now()
	}
	list, more, err := t.read(ctx)
	if err != nil {
		return err
	}
	t.l.tailLags.setLagging(t.partition, more)
	start := time.Now()
	if len(list) > 0 {
		prev := t.position
		t.position, t.lastNotificationID = list[len(list)-1].Cursor, list[len(list)-1].ID
		if t.entriesSeen >= 0 {
			t.entriesSeen += int64(len(list))
		}
		t.recordRecent(list)
		t.l.accounts.recordAccounts(list)
		t.emitBatch(Batch{Prev: prev, Last: t.position, Notifications: list})
	}
	if len(list) == 0 || more || time.Since(start) > tailBlockTime {
		t.connectsSeen = -1
	}
	return nil
}

func (t *tailReader) emitBatch(batch Batch) {
	batch.Partition, batch.Gap = t.partition, t.gapPending
	t.gapPending = false
	t.handle(batch)
}
