package backbone

import (
	"context"
	"math"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/cursor"
)

const (
	// A read asks for up to tailMost entries and aims at no more than tailBytes.
	tailMost  = 512
	tailBytes = 4 << 20
	// mostBytes is behind how much of an answer the rest of it is asked for anew: entries that follow small ones may be large.
	mostBytes = 2 * tailBytes
	tailBlock = time.Second
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

// tail is one reader of a partition's log.
type tail struct {
	b         *Backbone
	partition int
	key       string
	fn        func(Batch)

	wire *wire // nil where there is no connection
	stop func() bool
	// reads is the history of the server at the other end of wire.
	reads string

	pos string
	// added is how many entries the log had seen up to pos, -1 where that is not known.
	added int64
	// gap waits for the next batch to be reported with.
	gap bool
	// deleted is the newest deletion that was reported.
	deleted string
	// last is the id of the notification at pos, empty where that is not known, and server the history it was read from.
	last, server string
	// recent are the entries that were read last, up to pos.
	recent []place
	// count is how many entries the next read asks for.
	count int
	// checked is when the position was compared with the log last.
	checked time.Time
	// connects is the number of other connections of readers when the position was checked last, -1 where it is in doubt.
	connects int64
}

// place is where a notification was read.
type place struct{ pos, id string }

// TailFrom returns the current end of a partition's log, with its proof where an entry is there, and a [Backbone.Tail] from
// there, which sees everything that is appended from now on.
func (b *Backbone) TailFrom(ctx context.Context, partition int) (from cursor.Position, follow func(context.Context, func(Batch)) error, err error) {
	key := b.keys.Log(partition)
	info, err := b.streamInfo(ctx, key)
	if err != nil {
		return from, nil, explain("find the end of the log", err)
	}
	id, there, err := notificationAt(ctx, b.commands, key, info.last)
	if err != nil {
		return from, nil, explain("read the end of the log", err)
	}
	from, _ = cursor.ParsePosition(info.last)
	if there {
		from.Proof = cursor.ProofOf(id)
	}
	return from, func(ctx context.Context, fn func(Batch)) error {
		t := b.newTail(partition, fn)
		t.last = id
		return t.run(ctx, info.last, info.added)
	}, nil
}

// notificationAt returns the id of the notification in the entry at a position, and whether there is one.
func notificationAt(ctx context.Context, c writer, key, pos string) (id string, there bool, err error) {
	list, err := c.XRangeN(ctx, key, pos, pos, 1).Result()
	if err != nil || len(list) == 0 {
		return "", false, err
	}
	id, _ = list[0].Values[fieldID].(string)
	return id, true, nil
}

// Tail calls fn with everything behind from, in order, one batch at a time, until ctx ends; then it returns ctx's
// error within [MaxBlock]; only where Redis hangs in the midst of a look at the position does it wait as long as any
// command does. [Backbone.TailFrom] begins at the log's end. While Redis is away Tail waits and goes on behind its
// position; entries that are lost for good it reports as a gap. fn owns the batch's slice, and what it takes long for
// makes this reader lag.
func (b *Backbone) Tail(ctx context.Context, partition int, from string, fn func(Batch)) error {
	return b.newTail(partition, fn).run(ctx, from, -1)
}

func (b *Backbone) newTail(partition int, fn func(Batch)) *tail {
	return &tail{b: b, partition: partition, key: b.keys.Log(partition), fn: fn, deleted: begin, connects: -1, count: tailMost}
}

// run follows the log from a position, up to which it has seen added entries.
func (t *tail) run(ctx context.Context, from string, added int64) error {
	t.pos, t.added = from, added
	defer t.disconnect()
	wait := retryMin
	for ctx.Err() == nil {
		err := t.step(ctx)
		if err == nil {
			wait = retryMin
			continue
		}
		if ctx.Err() != nil {
			break
		}
		t.b.log.WarnContext(ctx, "cannot read the log, will go on where it stopped", "partition", t.partition, "position", t.pos, "error", err)
		t.connects = -1
		if !relay.Pause(ctx, wait) {
			break
		}
		wait = min(2*wait, retryMax)
	}
	return ctx.Err()
}

// step makes sure that the position still means what it meant where there is doubt, and reads once.
func (t *tail) step(ctx context.Context) error {
	if err := t.connect(ctx); err != nil {
		return err
	}
	// A new connection may lead to a server that has lost something, and a late reader may have been overtaken.
	if now := t.b.connects.Load(); t.connects != now || time.Since(t.checked) > tailBlock {
		if err := t.check(ctx); err != nil {
			return err
		}
		t.connects, t.checked = now, time.Now()
	}
	list, more, err := t.read(ctx)
	if err != nil {
		return err
	}
	start := time.Now()
	if len(list) > 0 {
		prev := t.pos
		t.pos, t.last = list[len(list)-1].Cursor, list[len(list)-1].ID
		if t.added >= 0 {
			t.added += int64(len(list))
		}
		t.remember(list)
		t.report(Batch{Prev: prev, Last: t.pos, Notifications: list})
	}
	if len(list) == 0 || more || time.Since(start) > tailBlock {
		t.connects = -1
	}
	return nil
}

func (t *tail) report(batch Batch) {
	batch.Partition, batch.Gap = t.partition, t.gap
	t.gap = false
	t.fn(batch)
}

// Range returns up to count notifications behind a position in a partition's log.
func (b *Backbone) Range(ctx context.Context, partition int, after string, count int) ([]relay.Notification, error) {
	if after == "" {
		after = begin
	}
	entries, err := b.readRange(ctx, b.keys.Log(partition), "("+after, count, math.MaxInt)
	if err != nil {
		return nil, explain("read the log", err)
	}
	return notificationsOf(entries), nil
}

// Reach tells whether everything behind a position is still in a partition's log, for a reader that comes back with a
// cursor. In doubt it says no: an entry that was trimmed away may have been followed by others.
func (b *Backbone) Reach(ctx context.Context, partition int, after string) (bool, error) {
	info, err := b.streamInfo(ctx, b.keys.Log(partition))
	if err != nil {
		return false, explain("find the beginning of the log", err)
	}
	switch order := CompareCursors(info.last, after); {
	case order < 0:
		return false, nil
	case order == 0:
		return true, nil
	}
	return !info.lost(after, -1, begin), nil
}

// streamInfo is what XINFO STREAM knows. A stream that does not exist is empty.
type streamInfo struct {
	last, first, deleted string
	// newest is the entry that is last in it: last itself, where that was not deleted.
	newest string
	length int64
	// added counts all entries ever added, -1 before Redis 7.
	added int64
}

// lost tells whether entries behind a position are gone from a log that goes on behind it. The log had seen added entries up to
// there, -1 where that is not known, and deletions up to known are known.
func (i streamInfo) lost(pos string, added int64, known string) bool {
	if added >= 0 && i.added >= 0 && i.added < added {
		return true // the log was set back, and has been written to since
	}
	if CompareCursors(i.deleted, pos) > 0 && CompareCursors(i.deleted, known) > 0 {
		return true
	}
	if i.length > 0 && CompareCursors(i.first, pos) <= 0 {
		return false
	}
	if added >= 0 && i.added >= 0 {
		return i.added-i.length != added // fewer where the log was begun anew
	}
	// The entry at the position has left the log: what followed it may have left too. From the very beginning nobody
	// can have missed anything.
	return pos != begin
}

func (b *Backbone) streamInfo(ctx context.Context, key string) (streamInfo, error) {
	return streamInfoFrom(ctx, b.commands, key)
}

func streamInfoFrom(ctx context.Context, c writer, key string) (streamInfo, error) {
	info := streamInfo{last: begin, first: begin, deleted: begin, newest: begin, added: -1}
	cmd := redis.NewSliceCmd(ctx, "XINFO", "STREAM", key)
	cmd.SetFirstKeyPos(2)
	_ = c.Process(ctx, cmd)
	reply, err := cmd.Result()
	if err != nil {
		if redis.HasErrorPrefix(err, "no such key") {
			info.added = 0
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
			info.last, _ = reply[i+1].(string)
		case "max-deleted-entry-id":
			info.deleted, _ = reply[i+1].(string)
		case "entries-added":
			info.added, _ = reply[i+1].(int64)
		case "first-entry":
			known = true
			info.first = entryID(reply[i+1])
		case "last-entry":
			info.newest = entryID(reply[i+1])
		}
	}
	if !known && info.length > 0 { // miniredis
		info.newest = info.last
		first, err := c.XRangeN(ctx, key, "-", "+", 1).Result()
		if err != nil {
			return info, err
		}
		if len(first) == 1 {
			info.first = first[0].ID
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
	return begin
}
