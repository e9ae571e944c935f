package eventlog

import (
	"context"
	"errors"
	"time"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
	"github.com/hubrelay/hubrelay/relay/internal/resp"
)

// errDifferentServer makes the reader connect again.
var errDifferentServer = errors.New("another server has the log now")

// ensureConn connects to the server that has the log. After a new connection, the position must be verified.
func (t *tailReader) ensureConn(ctx context.Context) error {
	if t.conn != nil {
		return nil
	}
	readers := t.l.conn.Readers()
	node, err := redisconn.NodeFor(ctx, readers, t.key)
	if err != nil {
		return err
	}
	c, err := resp.Dial(ctx, node.Options())
	if err != nil {
		redisconn.ReloadSlots(ctx, readers)
		return err
	}
	stop := c.CloseAfter(ctx)
	info, err := c.CallString("INFO", "replication")
	if err != nil && redisconn.IsTransient(err) {
		stop()
		_ = c.Close()
		return err
	}
	t.conn, t.stop, t.serverHistory, t.connectsSeen = c, stop, redisconn.InfoField(info, "master_replid"), -1
	return nil
}

func (t *tailReader) closeConn() {
	if t.conn != nil {
		t.stop()
		_ = t.conn.Close()
		t.conn = nil
	}
}

// read waits for entries after the position. It returns true if more entries may be available already.
func (t *tailReader) read(ctx context.Context) (list []relay.Notification, more bool, err error) {
	block := tailBlockTime
	if t.l.tailLags[t.partition].Load() != nil { // if there is no more, this reader does not lag
		block = time.Millisecond
	}
	entries, truncated, err := t.conn.ReadStream(t.key, t.position, t.readCount, block, maxReplyBytes)
	if err != nil {
		t.closeConn()
		redisconn.ReloadSlots(ctx, t.l.conn.Readers()) // the slot may have moved
		return nil, false, err
	}
	if truncated {
		t.closeConn()
	}
	more = truncated || len(entries) == t.readCount
	t.readCount = nextCount(t.readCount, entries)
	return ToNotifications(entries), more, nil
}

// nextCount returns the number of entries to request next. It doubles after a full read, but entries of the largest
// size seen must not exceed tailTargetBytes.
func nextCount(count int, entries []resp.Entry) int {
	if len(entries) == count {
		count = min(2*count, maxTailRead)
	}
	largest := 1
	for _, e := range entries {
		largest = max(largest, len(e.Body))
	}
	return max(1, min(count, tailTargetBytes/largest))
}
