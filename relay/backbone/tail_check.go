package backbone

import (
	"context"
	"errors"

	"github.com/redis/go-redis/v9"

	"github.com/hubrelay/hubrelay/relay"
)

// check compares the position with what the log is now, all of which it asks one server, over one connection.
func (t *tail) check(ctx context.Context) error {
	node, err := nodeOf(ctx, t.b.readers, t.key)
	if err == nil {
		conn := node.Conn()
		err = t.compare(ctx, conn)
		_ = conn.Close()
	}
	if err != nil {
		reroute(ctx, t.b.readers)
	}
	return err
}

func (t *tail) compare(ctx context.Context, conn *redis.Conn) error {
	server, err := historyOf(ctx, conn)
	if err != nil {
		return err
	}
	if server != t.reads {
		t.disconnect()
		return errOtherServer
	}
	info, err := streamInfoFrom(ctx, conn, t.key)
	if err != nil {
		return err
	}
	ours, err := t.isOurs(ctx, conn, server, info)
	if err != nil {
		return err
	}
	order := CompareCursors(info.last, t.pos)
	same := ours && (order != 0 || t.added < 0 || info.added < 0 || info.added == t.added)
	switch {
	case order < 0, !same:
		err = t.setBack(ctx, conn, info)
	case order == 0:
		t.added = info.added
	default:
		t.goOn(ctx, info)
	}
	if err == nil {
		t.server = server // not before: whoever looks again must doubt it again
	}
	return err
}

// goOn notices where something is missing between the position and what the log goes on with.
func (t *tail) goOn(ctx context.Context, info streamInfo) {
	if !t.gap && t.lost(info) {
		t.gap = true
		t.b.log.WarnContext(ctx, "entries left the log unread", "partition", t.partition, "position", t.pos, "first", info.first)
		t.added = -1
		if info.added >= 0 && CompareCursors(info.first, t.pos) > 0 && CompareCursors(info.deleted, info.first) < 0 {
			t.added = info.added - info.length
		}
	}
	if t.gap && CompareCursors(info.newest, t.pos) <= 0 { // there is nothing to report it with
		prev := t.pos
		t.pos, t.added, t.last = info.last, info.added, ""
		t.report(Batch{Prev: prev, Last: t.pos})
	}
}

// setBack goes on in a log that lacks the entry at the position, from the last one that it has in common with what was
// read: what follows that may have smaller ids than the position, and nobody has seen it.
func (t *tail) setBack(ctx context.Context, conn *redis.Conn, info streamInfo) error {
	to, shared := place{pos: info.last}, 0
	if len(t.recent) > 0 && CompareCursors(info.last, t.recent[0].pos) > 0 {
		list, err := conn.XRange(ctx, t.key, t.recent[0].pos, t.pos).Result()
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
	t.b.log.WarnContext(ctx, "the log was set back, entries are lost", "partition", t.partition, "position", t.pos, "last", info.last)
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

// isOurs tells whether the log goes on with what was read, that is has the entry at our position. There is doubt where the
// server is another than before, or has begun anew.
func (t *tail) isOurs(ctx context.Context, conn *redis.Conn, server string, info streamInfo) (bool, error) {
	if t.server == "" || server == t.server || t.pos == begin {
		return true, nil
	}
	id, there, err := notificationAt(ctx, conn, t.key, t.pos)
	switch {
	case err != nil:
		return false, err
	case !there:
		return info.last == t.pos, nil // it was trimmed, and nothing has followed
	}
	// Two servers may have given the same id in the same millisecond.
	return t.last == "" || id == t.last, nil
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
	lost := info.lost(t.pos, t.added, t.deleted)
	if lost && CompareCursors(info.deleted, t.pos) > 0 {
		t.deleted = info.deleted
	}
	return lost
}
