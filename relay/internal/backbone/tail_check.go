package backbone

import (
	"context"
	"errors"

	"github.com/redis/go-redis/v9"

	"github.com/hubrelay/hubrelay/relay"
)

// verify compares the position with what the log is now, all of which it asks one server, over one connection.
func (t *tailReader) verify(ctx context.Context) error {
	node, err := nodeOf(ctx, t.b.blockingClient, t.key)
	if err == nil {
		conn := node.Conn()
		err = t.verifyPosition(ctx, conn)
		_ = conn.Close()
	}
	if err != nil {
		reloadSlots(ctx, t.b.blockingClient)
	}
	return err
}

func (t *tailReader) verifyPosition(ctx context.Context, conn *redis.Conn) error {
	server, err := replicationHistory(ctx, conn)
	if err != nil {
		return err
	}
	if server != t.serverHistory {
		t.disconnect()
		return errDifferentServer
	}
	info, err := streamInfoFrom(ctx, conn, t.key)
	if err != nil {
		return err
	}
	ours, err := t.isSameLog(ctx, conn, server, info)
	if err != nil {
		return err
	}
	order := CompareEntryIDs(info.lastID, t.position)
	same := ours && (order != 0 || t.entriesSeen < 0 || info.totalAdded < 0 || info.totalAdded == t.entriesSeen)
	switch {
	case order < 0, !same:
		err = t.recoverFromRollback(ctx, conn, info)
	case order == 0:
		t.entriesSeen = info.totalAdded
	default:
		t.detectGap(ctx, info)
	}
	if err == nil {
		t.positionHistory = server // not before: whoever looks again must doubt it again
	}
	return err
}

// detectGap notices where something is missing between the position and what the log goes on with.
func (t *tailReader) detectGap(ctx context.Context, info streamInfo) {
	if !t.gapPending && t.hasGap(info) {
		t.gapPending = true
		t.b.log.WarnContext(ctx, "entries left the log unread", "partition", t.partition, "position", t.position, "first", info.firstID)
		t.entriesSeen = -1
		if info.totalAdded >= 0 && CompareEntryIDs(info.firstID, t.position) > 0 && CompareEntryIDs(info.maxDeletedID, info.firstID) < 0 {
			t.entriesSeen = info.totalAdded - info.length
		}
	}
	if t.gapPending && CompareEntryIDs(info.newestID, t.position) <= 0 { // there is nothing to report it with
		prev := t.position
		t.position, t.entriesSeen, t.lastNotificationID = info.lastID, info.totalAdded, ""
		t.emit(Batch{Prev: prev, Last: t.position})
	}
}

// recoverFromRollback goes on in a log that lacks the entry at the position, from the last one that it has in common with what was
// read: what follows that may have smaller ids than the position, and nobody has seen it.
func (t *tailReader) recoverFromRollback(ctx context.Context, conn *redis.Conn, info streamInfo) error {
	to, shared := logEntryRef{pos: info.lastID}, 0
	if len(t.recentEntries) > 0 && CompareEntryIDs(info.lastID, t.recentEntries[0].pos) > 0 {
		list, err := conn.XRange(ctx, t.key, t.recentEntries[0].pos, t.position).Result()
		if err != nil {
			return err
		}
		to.pos = t.recentEntries[0].pos // whatever follows it was read since, or is new
		there := make(map[logEntryRef]bool, len(list))
		for i := range list {
			id, _ := list[i].Values["id"].(string)
			there[logEntryRef{list[i].ID, id}] = true
		}
		for i, p := range t.recentEntries {
			if there[p] {
				to, shared = p, i+1
			}
		}
	}
	t.b.log.WarnContext(ctx, "the log was set back, entries are lost", "partition", t.partition, "position", t.position, "last", info.lastID)
	prev := t.position
	t.position, t.lastNotificationID, t.recentEntries = to.pos, to.id, t.recentEntries[:shared]
	t.entriesSeen, t.gapPending, t.lastDeletion = -1, true, zeroID
	if to.pos == info.lastID {
		t.entriesSeen = info.totalAdded
	}
	t.emit(Batch{Prev: prev, Last: t.position})
	return nil
}

// maxRecentEntries is how many entries a replica may have been behind for all that its new history has to be read.
const maxRecentEntries = 1024

// recordRecent keeps where the newest entries were.
func (t *tailReader) recordRecent(list []relay.Notification) {
	if len(t.recentEntries)+len(list) > 2*maxRecentEntries {
		t.recentEntries = append(t.recentEntries[:0], t.recentEntries[len(t.recentEntries)-maxRecentEntries:]...)
	}
	for i := range list {
		t.recentEntries = append(t.recentEntries, logEntryRef{list[i].Cursor, list[i].ID})
	}
}

// isSameLog tells whether the log goes on with what was read, that is has the entry at our position. There is doubt where the
// server is another than before, or has begun anew.
func (t *tailReader) isSameLog(ctx context.Context, conn *redis.Conn, server string, info streamInfo) (bool, error) {
	if t.positionHistory == "" || server == t.positionHistory || t.position == zeroID {
		return true, nil
	}
	id, there, err := notificationAt(ctx, conn, t.key, t.position)
	switch {
	case err != nil:
		return false, err
	case !there:
		return info.lastID == t.position, nil // it was trimmed, and nothing has followed
	}
	// Two servers may have given the same id in the same millisecond.
	return t.lastNotificationID == "" || id == t.lastNotificationID, nil
}

// replicationHistory names the history that a server's data has: a replica's is its primary's, and a restart or a promotion begins
// another. It is empty where the server does not tell.
func replicationHistory(ctx context.Context, conn *redis.Conn) (string, error) {
	text, err := conn.Info(ctx, "replication").Result()
	var answer redis.Error
	if err != nil && errors.As(err, &answer) && !isUnavailable(err) {
		return "", nil // forbidden, or miniredis
	}
	return infoField(text, "master_replid"), err
}

// hasGap tells whether entries behind the position are gone, given a log that goes on behind it.
func (t *tailReader) hasGap(info streamInfo) bool {
	lost := info.lostAfter(t.position, t.entriesSeen, t.lastDeletion)
	if lost && CompareEntryIDs(info.maxDeletedID, t.position) > 0 {
		t.lastDeletion = info.maxDeletedID
	}
	return lost
}
