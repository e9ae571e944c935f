package backbone

import (
	"context"
	"errors"

	"github.com/redis/go-redis/v9"

	"github.com/hubrelay/hubrelay/relay"
)

// check compares the position with what the log is now.
func (t *tail) check(ctx context.Context) error {
	info, ours, err := t.look(ctx)
	if err != nil {
		reroute(ctx, t.b.readers)
		return err
	}
	order := CompareCursors(info.last, t.pos)
	same := ours && (order != 0 || t.added < 0 || info.added < 0 || info.added == t.added)
	switch {
	case order < 0, !same:
		return t.setBack(ctx, info)
	case order == 0:
		t.added = info.added
		return nil
	}
	if !t.gap && t.lost(info) {
		t.gap = true
		t.b.log.WarnContext(ctx, "entries left the log unread", "partition", t.partition, "position", t.pos, "first", info.first)
		t.added = -1
		if info.added >= 0 && CompareCursors(info.first, t.pos) > 0 && CompareCursors(info.deleted, info.first) < 0 {
			t.added = info.added - info.length
		}
	}
	if t.gap && info.length == 0 {
		prev := t.pos
		t.pos, t.added, t.last = info.last, info.added, ""
		t.report(Batch{Prev: prev, Last: t.pos})
	}
	return nil
}

// setBack goes on in a log that lacks the entry at the position, from the last one that it has in common with what was
// read: what follows that may have smaller ids than the position, and nobody has seen it.
func (t *tail) setBack(ctx context.Context, info streamInfo) error {
	t.b.log.WarnContext(ctx, "the log was set back, entries are lost", "partition", t.partition, "position", t.pos, "last", info.last)
	to, shared := place{pos: info.last}, 0
	if len(t.recent) > 0 && CompareCursors(info.last, t.recent[0].pos) > 0 {
		list, err := t.b.readers.XRange(ctx, t.key, t.recent[0].pos, t.pos).Result()
		if err != nil {
			return err
		}
		to.pos = t.recent[0].pos // whatever follows it was read since, or is new
		there := make(map[place]bool, len(list))
		for i := range list {
			id, _ := list[i].Values["id"].(string)
			there[place{list[i].ID, id}] = true
		}
		for i, p := range t.recent {
			if there[p] {
				to, shared = p, i+1
			}
		}
	}
	prev := t.pos
	t.pos, t.last, t.recent = to.pos, to.id, t.recent[:shared]
	t.added, t.gap, t.deleted = -1, true, begin
	if to.pos == info.last {
		t.added = info.added
	}
	t.report(Batch{Prev: prev, Last: t.pos})
	return nil
}

// recentMost is how many entries a replica may have been behind for all that its new history has to be read.
const recentMost = 1024

// remember keeps where the newest entries were.
func (t *tail) remember(list []relay.Notification) {
	if len(t.recent)+len(list) > 2*recentMost {
		t.recent = append(t.recent[:0], t.recent[len(t.recent)-recentMost:]...)
	}
	for i := range list {
		t.recent = append(t.recent, place{list[i].Cursor, list[i].ID})
	}
}

// look reads the log's state, all of it from one server. Where that is another than before, or has begun anew, ours
// tells whether its log has our position, that is whether it goes on with what was read.
func (t *tail) look(ctx context.Context) (info streamInfo, ours bool, err error) {
	node, err := nodeOf(ctx, t.b.readers, t.key)
	if err != nil {
		return info, false, err
	}
	conn := node.Conn()
	defer func() { _ = conn.Close() }()
	server, err := historyOf(ctx, conn)
	if err != nil {
		return info, false, err
	}
	if server != t.reads {
		t.disconnect()
		return info, false, errOtherServer
	}
	info, err = streamInfoFrom(ctx, conn, t.key)
	if err != nil {
		return info, false, err
	}
	ours = true
	if t.server != "" && server != t.server && t.pos != begin {
		list, err := conn.XRangeN(ctx, t.key, t.pos, t.pos, 1).Result()
		if err != nil {
			return info, false, err
		}
		if len(list) == 1 {
			// Two servers may have given the same id in the same millisecond.
			ours = t.last == "" || list[0].Values["id"] == t.last
		} else {
			ours = info.last == t.pos // it was trimmed, and nothing has followed
		}
	}
	t.server = server
	return info, ours, nil
}

// historyOf names the history that a server's data has: a replica's is its primary's, and a restart or a promotion begins
// another. It is empty where the server does not tell.
func historyOf(ctx context.Context, conn *redis.Conn) (string, error) {
	text, err := conn.Info(ctx, "replication").Result()
	var answer redis.Error
	if err != nil && errors.As(err, &answer) && !isUnavailable(err) {
		return "", nil // forbidden, or miniredis
	}
	return infoField(text, "master_replid"), err
}

// lost tells whether entries behind the position are gone, given a log that goes on behind it.
func (t *tail) lost(info streamInfo) bool {
	if t.added >= 0 && info.added >= 0 && info.added < t.added {
		return true // the log was set back, and has been written to since
	}
	if CompareCursors(info.deleted, t.pos) > 0 && CompareCursors(info.deleted, t.deleted) > 0 {
		t.deleted = info.deleted
		return true
	}
	if info.length > 0 && CompareCursors(info.first, t.pos) <= 0 {
		return false
	}
	if t.added >= 0 && info.added >= 0 {
		return info.added-info.length != t.added // fewer where the log was begun anew
	}
	// The entry at the position has left the log: what followed it may have left too. From the very beginning nobody
	// can have missed anything.
	return t.pos != begin
}
