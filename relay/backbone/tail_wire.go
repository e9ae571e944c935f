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
	text, err := w.text("INFO", "replication")
	if err != nil && isTransient(err) {
		_ = w.conn.Close()
		return err
	}
	t.wire, t.reads, t.connects = w, infoField(text, "master_replid"), -1
	return nil
}

func (t *tail) disconnect() {
	if t.wire != nil {
		_ = t.wire.conn.Close()
		t.wire = nil
	}
}

var errOtherServer = errors.New("the log is on another server than was read from")

// read waits for what follows the position.
func (t *tail) read(ctx context.Context) ([]relay.Notification, error) {
	list, err := t.wire.follow(t.key, t.pos, tailCount, tailBlock)
	if err != nil {
		t.disconnect()
		reroute(ctx, t.b.readers) // a slot may have moved
	}
	return list, err
}

// follow is XREAD of one stream.
func (w *wire) follow(key, after string, count int, block time.Duration) ([]relay.Notification, error) {
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
		return nil, err
	}
	return w.followed(key)
}

// followed reads the answer.
func (w *wire) followed(key string) ([]relay.Notification, error) {
	n, err := w.array()
	if err != nil || n <= 0 {
		return nil, err
	}
	if _, err := w.arrayOf(2); err != nil {
		return nil, err
	}
	if w.scratch, err = w.bulk(w.scratch[:0]); err != nil {
		return nil, err
	}
	if n != 1 || string(w.scratch) != key {
		return nil, fmt.Errorf("redis answered for %d streams, the first of them %.60q, where %.60q was asked for", n, w.scratch, key)
	}
	entries, err := w.entries()
	if err != nil {
		return nil, err
	}
	list := make([]relay.Notification, len(entries))
	for i, e := range entries {
		list[i] = e.notification()
	}
	return list, nil
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

// notification reads a log entry. Our own fields come first and in order, but whoever writes to Redis may do otherwise.
func (e stored) notification() relay.Notification {
	var all texts
	all.grow(e.body)
	n := relay.Notification{Cursor: e.id}
	fields(e.body, func(key, value []byte) bool {
		switch string(key) {
		case fieldID:
			n.ID = all.of(value)
		case "topic":
			n.Topic = all.of(value)
		case "hub":
			n.Hub = all.of(value)
		case "account":
			n.Account = all.of(value)
		case fieldData:
			n.Data = value
		}
		return true
	})
	return n
}
