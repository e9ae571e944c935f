package backbone

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/hubrelay/hubrelay/relay"
)

// connect makes sure of a connection to the server that has the log. Nobody has seen yet whether a new one has the position.
func (t *tailReader) connect(ctx context.Context) error {
	if t.wire != nil {
		return nil
	}
	node, err := nodeOf(ctx, t.b.blockingClient, t.key)
	if err != nil {
		return err
	}
	w, err := dialRESP(ctx, node.Options())
	if err != nil {
		reloadSlots(ctx, t.b.blockingClient)
		return err
	}
	stop := w.closeAfter(ctx)
	text, err := w.callString("INFO", "replication")
	if err != nil && isTransient(err) {
		stop()
		_ = w.conn.Close()
		return err
	}
	t.wire, t.stop, t.serverHistory, t.connectsSeen = w, stop, infoField(text, "master_replid"), -1
	return nil
}

func (t *tailReader) disconnect() {
	if t.wire != nil {
		t.stop()
		_ = t.wire.conn.Close()
		t.wire = nil
	}
}

var errDifferentServer = errors.New("the log is on another server than was read from")

// read waits for what follows the position. It reports true where more may be there already.
func (t *tailReader) read(ctx context.Context) (list []relay.Notification, more bool, err error) {
	entries, cut, err := t.wire.readStream(t.key, t.position, t.readCount, tailBlockTime)
	if err != nil {
		t.disconnect()
		reloadSlots(ctx, t.b.blockingClient) // a slot may have moved
		return nil, false, err
	}
	if cut {
		t.disconnect()
	}
	more = cut || len(entries) == t.readCount
	t.readCount = nextCount(t.readCount, entries)
	return notificationsOf(entries), more, nil
}

// nextCount is how many entries the next read may ask for: twice as many where it got all that it asked for, as long as
// that stays within tailBytes with the largest that it got.
func nextCount(count int, got []rawEntry) int {
	if len(got) == count {
		count = min(2*count, maxTailRead)
	}
	largest := 1
	for _, e := range got {
		largest = max(largest, len(e.body))
	}
	return max(1, min(count, tailTargetBytes/largest))
}

// readStream is XREAD of one stream. See [respConn.entriesWithin] for an answer that it cut short.
func (w *respConn) readStream(key, after string, count int, block time.Duration) (list []rawEntry, cut bool, err error) {
	w.beginCommand(8)
	w.appendArg("XREAD")
	w.appendArg("COUNT")
	w.appendArg(strconv.Itoa(count))
	w.appendArg("BLOCK")
	w.appendArg(strconv.FormatInt(block.Milliseconds(), 10))
	w.appendArg("STREAMS")
	w.appendArg(key)
	w.appendArg(after)
	if err := w.send(block); err != nil {
		return nil, false, err
	}
	return w.parseStreamReply(key)
}

// parseStreamReply reads the answer.
func (w *respConn) parseStreamReply(key string) (list []rawEntry, cut bool, err error) {
	n, err := w.readArrayLen()
	if err != nil || n <= 0 {
		return nil, false, err
	}
	if _, err := w.arrayOf(2); err != nil {
		return nil, false, err
	}
	if w.scratch, err = w.readBulk(w.scratch[:0]); err != nil {
		return nil, false, err
	}
	if n != 1 || string(w.scratch) != key {
		return nil, false, fmt.Errorf("redis answered for %d streams, the first of them %.60q, where %.60q was asked for", n, w.scratch, key)
	}
	return w.entriesWithin(maxReplyBytes)
}

// callString sends a command that answers with a string.
func (w *respConn) callString(args ...string) (string, error) {
	w.beginCommand(len(args))
	for _, a := range args {
		w.appendArg(a)
	}
	if err := w.send(0); err != nil {
		return "", err
	}
	var err error
	w.scratch, err = w.readBulk(w.scratch[:0])
	return string(w.scratch), err
}
