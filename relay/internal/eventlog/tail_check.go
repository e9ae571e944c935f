package eventlog

import (
	"context"
	"errors"

	"github.com/redis/go-redis/v9"

	"github.com/hubrelay/hubrelay/internal/streamid"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
	"github.com/hubrelay/hubrelay/relay/internal/resp"
)

// verifyOnServer compares the position with the log. It asks one server over one connection for everything.
func (t *tailReader) verifyOnServer(ctx context.Context) error {
	readers := t.l.conn.Readers()
	node, err := redisconn.NodeFor(ctx, readers, t.key)
	if err == nil {
		conn := node.Conn()
		err = t.verifyPosition(ctx, conn)
		_ = conn.Close()
	}
	if err != nil {
		redisconn.ReloadSlots(ctx, readers)
	}
	return err
}

func (t *tailReader) verifyPosition(ctx context.Context, conn *redis.Conn) error {
	history, err := replicationID(ctx, conn)
	if err != nil {
		return err
	}
	if history != t.serverHistory {
		t.closeConn()
		return errDifferentServer
	}
	info, err := redisconn.ReadStreamInfo(ctx, conn, t.key)
	if err != nil {
		return err
	}
	same, err := t.isSameLog(ctx, conn, history, info)
	if err != nil {
		return err
	}
	order := streamid.Compare(info.LastID, t.position)
	if order == 0 && t.entriesSeen >= 0 && info.TotalAdded >= 0 && info.TotalAdded != t.entriesSeen {
		same = false
	}
	switch {
	case order < 0, !same:
		err = t.recoverFromRollback(ctx, conn, info)
	case order == 0:
		t.entriesSeen = info.TotalAdded
	default:
		t.detectGap(ctx, info)
	}
	if err == nil {
		t.positionHistory = history // only now, so a failed recovery is repeated
	}
	return err
}

// detectGap notices that entries between the position and the first entry are missing.
func (t *tailReader) detectGap(ctx context.Context, info redisconn.StreamInfo) {
	if !t.gapPending && t.hasGap(info) {
		t.gapPending = true
		t.l.conn.Logger().WarnContext(ctx, "log entries were trimmed before they were read",
			"partition", t.partition, "position", t.position, "first_entry_id", info.FirstID)
		t.entriesSeen = -1
		if info.TotalAdded >= 0 && streamid.Compare(info.FirstID, t.position) > 0 &&
			streamid.Compare(info.MaxDeletedID, info.FirstID) < 0 {
			t.entriesSeen = info.TotalAdded - info.Length
		}
	}
	if t.gapPending && streamid.Compare(info.NewestID, t.position) <= 0 { // no entry follows that could report it
		prev := t.position
		t.position, t.entriesSeen, t.lastNotificationID = info.LastID, info.TotalAdded, ""
		t.emitBatch(Batch{Prev: prev, Last: t.position})
	}
}

// recoverFromRollback continues in a log that lacks the entry at the position. It starts after the last entry that the
// log shares with the recent entries. Later entries may have lower IDs than the position, and no reader has seen them.
func (t *tailReader) recoverFromRollback(ctx context.Context, conn *redis.Conn, info redisconn.StreamInfo) error {
	resumeAt, shared := entryRef{position: info.LastID}, 0
	if len(t.recentEntries) > 0 && streamid.Compare(info.LastID, t.recentEntries[0].position) > 0 {
		list, err := conn.XRange(ctx, t.key, t.recentEntries[0].position, t.position).Result()
		if err != nil {
			return err
		}
		resumeAt.position = t.recentEntries[0].position // all later entries were read since, or are new
		exists := make(map[entryRef]bool, len(list))
		for i := range list {
			id, _ := list[i].Values[resp.FieldID].(string)
			exists[entryRef{list[i].ID, id}] = true
		}
		for i, ref := range t.recentEntries {
			if exists[ref] {
				resumeAt, shared = ref, i+1
			}
		}
	}
	t.l.conn.Logger().WarnContext(ctx, "the log has lost its newest entries",
		"partition", t.partition, "position", t.position, "last_entry_id", info.LastID)
	prev := t.position
	t.position, t.lastNotificationID, t.recentEntries = resumeAt.position, resumeAt.id, t.recentEntries[:shared]
	t.entriesSeen, t.gapPending, t.lastDeletion = -1, true, streamid.Zero
	if resumeAt.position == info.LastID {
		t.entriesSeen = info.TotalAdded
	}
	t.emitBatch(Batch{Prev: prev, Last: t.position})
	return nil
}

// maxRecentEntries is the number of entries by which a promoted replica may have lagged without a loss for readers.
const maxRecentEntries = 1024

// recordRecent remembers the newest entries.
func (t *tailReader) recordRecent(list []relay.Notification) {
	if len(t.recentEntries)+len(list) > 2*maxRecentEntries {
		newest := t.recentEntries[len(t.recentEntries)-maxRecentEntries:]
		t.recentEntries = append(t.recentEntries[:0], newest...)
	}
	for i := range list {
		t.recentEntries = append(t.recentEntries, entryRef{list[i].Cursor, list[i].ID})
	}
}

// isSameLog reports whether the log still has the entry at the position. It checks that only if the replication ID has
// changed, after a restart or a failover.
func (t *tailReader) isSameLog(
	ctx context.Context, conn *redis.Conn, history string, info redisconn.StreamInfo,
) (bool, error) {
	if t.positionHistory == "" || history == t.positionHistory || t.position == streamid.Zero {
		return true, nil
	}
	id, exists, err := notificationAt(ctx, conn, t.key, t.position)
	switch {
	case err != nil:
		return false, err
	case !exists:
		return info.LastID == t.position, nil // the entry was trimmed, and none follows
	}
	// Two servers may have used the same ID in the same millisecond.
	return t.lastNotificationID == "" || id == t.lastNotificationID, nil
}

// replicationID returns the ID of the history of a server's data. A replica has the ID of its primary. A restart or a
// promotion starts a new history. The ID is "" if the server does not report it.
func replicationID(ctx context.Context, conn *redis.Conn) (string, error) {
	info, err := conn.Info(ctx, "replication").Result()
	var reply redis.Error
	if err != nil && errors.As(err, &reply) && !redisconn.IsUnavailable(err) {
		return "", nil // not permitted, or miniredis
	}
	return redisconn.InfoField(info, "master_replid"), err
}

// hasGap reports whether entries after the position are missing from a log whose last entry is higher.
func (t *tailReader) hasGap(info redisconn.StreamInfo) bool {
	lost := lostAfter(info, t.position, t.entriesSeen, t.lastDeletion)
	if lost && streamid.Compare(info.MaxDeletedID, t.position) > 0 {
		t.lastDeletion = info.MaxDeletedID
	}
	return lost
}
