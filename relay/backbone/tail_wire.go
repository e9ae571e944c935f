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
func (t *tail) connect(ctx context.Context) error {
	if t.wire != nil {
		return nil
	}
	node, err := nodeOf(ctx, t.b.readers, t.key)
	if err != nil {
		return err
	}
	w, err := dialWire(ctx, node.Options())
	if err != nil {
		reroute(ctx, t.b.readers)
		return err
	}
	stop := w.closeAfter(ctx)
	text, err := w.text("INFO", "replication")
	if err != nil && isTransient(err) {
		stop()
		_ = w.conn.Close()
		return err
	}
	t.wire, t.stop, t.reads, t.connects = w, stop, infoField(text, "master_replid"), -1
	return nil
}

func (t *tail) disconnect() {
	if t.wire != nil {
		t.stop()
		_ = t.wire.conn.Close()
		t.wire = nil
	}
}

var errOtherServer = errors.New("the log is on another server than was read from")

// read waits for what follows the position. It reports true where more may be there already.
func (t *tail) read(ctx context.Context) (list []relay.Notification, more bool, err error) {
	entries, cut, err := t.wire.follow(t.key, t.pos, t.count, tailBlock)
	if err != nil {
		t.disconnect()
		reroute(ctx, t.b.readers) // a slot may have moved
		return nil, false, err
	}
	if cut {
		t.disconnect()
	}
	more = cut || len(entries) == t.count
	t.count = nextCount(t.count, entries)
	return notificationsOf(entries), more, nil
}

// nextCount is how many entries the next read may ask for: twice as many where it got all that it asked for, as long as
// that stays within tailBytes with the largest that it got.
func nextCount(count int, got []stored) int {
	if len(got) == count {
		count = min(2*count, tailMost)
	}
	largest := 1
	for _, e := range got {
		largest = max(largest, len(e.body))
	}
	return max(1, min(count, tailBytes/largest))
}

// follow is XREAD of one stream. See [wire.entriesWithin] for an answer that it cut short.
func (w *wire) follow(key, after string, count int, block time.Duration) (list []stored, cut bool, err error) {
	w.begin(8)
	w.arg("XREAD")
	w.arg("COUNT")
	w.arg(strconv.Itoa(count))
	w.arg("BLOCK")
	w.arg(strconv.FormatInt(block.Milliseconds(), 10))
	w.arg("STREAMS")
	w.arg(key)
	w.arg(after)
	if err := w.send(block); err != nil {
		return nil, false, err
	}
	return w.followed(key)
}

// followed reads the answer.
func (w *wire) followed(key string) (list []stored, cut bool, err error) {
	n, err := w.array()
	if err != nil || n <= 0 {
		return nil, false, err
	}
	if _, err := w.arrayOf(2); err != nil {
		return nil, false, err
	}
	if w.scratch, err = w.bulk(w.scratch[:0]); err != nil {
		return nil, false, err
	}
	if n != 1 || string(w.scratch) != key {
		return nil, false, fmt.Errorf("redis answered for %d streams, the first of them %.60q, where %.60q was asked for", n, w.scratch, key)
	}
	return w.entriesWithin(mostBytes)
}

// text sends a command that answers with a string.
func (w *wire) text(args ...string) (string, error) {
	w.begin(len(args))
	for _, a := range args {
		w.arg(a)
	}
	if err := w.send(0); err != nil {
		return "", err
	}
	var err error
	w.scratch, err = w.bulk(w.scratch[:0])
	return string(w.scratch), err
}
