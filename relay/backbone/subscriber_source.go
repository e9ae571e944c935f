package backbone

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

const (
	fromStart = "0"
	newOnly   = ">"
)

// queueEntry is one entry of a stream from the moment it was read until its ack is stored or it was given back.
type queueEntry struct {
	src  *source
	id   string
	body []byte // see stored
	read time.Time
	key  string
	msg  *message.Message // built ahead for the key, or nil
}

// message returns a message that no handler has seen.
func (e *queueEntry) message() *message.Message {
	if e.msg != nil {
		return e.msg
	}
	m := message.NewMessage("", nil)
	fields(e.body, func(key, value []byte) bool {
		switch string(key) {
		case fieldID:
			m.UUID = string(value)
		case fieldData:
			m.Payload = value
		case "topic": // a constant key costs no memory
			m.Metadata["topic"] = string(value)
		case "hub":
			m.Metadata["hub"] = string(value)
		case "account":
			m.Metadata["account"] = string(value)
		default:
			m.Metadata[string(key)] = string(value)
		}
		return true
	})
	m.Metadata[metadataCursor] = e.id
	e.msg = m
	return m
}

func decodable(body []byte) bool {
	var id, data bool
	fields(body, func(key, value []byte) bool {
		switch string(key) {
		case fieldID:
			id = len(value) > 0
		case fieldData:
			data = true
		}
		return !id || !data
	})
	return id && data
}

// source is one stream of a topic and what this node holds of it.
type source struct {
	stream string
	topic  *topic
	reader atomic.Pointer[reader] // nil while nobody subscribes

	mu   sync.Mutex
	held map[string]*queueEntry // by id: in memory, or acked and not yet stored
	// after is where the next read begins: an id while this consumer's own pending entries are read, then newOnly.
	after string
	last  string // last new id, for streams that keep what was acked

	// These belong to the reader.
	grouped bool      // the group was seen
	retry   time.Time // not to be read before, since the key is no stream

	// These belong to the keeper.
	cursor string
	claim  time.Time // when to look for abandoned entries
}

func newSource(stream string, t *topic) *source {
	return &source{stream: stream, topic: t, held: make(map[string]*queueEntry), after: fromStart, last: fromStart}
}

func (src *source) attach(r *reader) {
	src.reread()
	src.reader.Store(r)
	r.add(src)
}

func (src *source) detach() {
	if r := src.reader.Swap(nil); r != nil {
		r.remove(src)
	}
}

// reread lets the reader begin with this consumer's pending entries again.
func (src *source) reread() {
	src.mu.Lock()
	src.after = fromStart
	src.mu.Unlock()
}

func (src *source) position() string {
	src.mu.Lock()
	defer src.mu.Unlock()
	return src.after
}

// take keeps what was read or claimed, and sorts it: entries to work on, ids without an entry, and bad entries. While
// own pending entries are being read, claimed ones join them instead, so that they come in order.
func (src *source) take(msgs []stored, claimed bool) (fresh []*queueEntry, dead []string, bad []stored) {
	block := make([]queueEntry, len(msgs))
	fresh = make([]*queueEntry, 0, len(msgs))
	now := time.Now()
	src.mu.Lock()
	defer src.mu.Unlock()
	if claimed && src.after != newOnly {
		src.after = fromStart
		return nil, nil, nil
	}
	for i, m := range msgs {
		if _, ok := src.held[m.id]; ok {
			continue
		}
		switch {
		case m.body == nil: // pending, but trimmed away
			dead = append(dead, m.id)
		case !decodable(m.body):
			bad = append(bad, m)
		default:
			e := &block[i]
			*e = queueEntry{src: src, id: m.id, body: m.body, read: now}
			src.held[m.id] = e
			fresh = append(fresh, e)
		}
	}
	return fresh, dead, bad
}

// advance moves the position behind msgs, the answer to a read that began after from. It returns true when the last of
// this consumer's own pending entries has been read.
func (src *source) advance(from string, msgs []stored) bool {
	src.mu.Lock()
	defer src.mu.Unlock()
	if from == newOnly {
		if len(msgs) > 0 {
			src.last = msgs[len(msgs)-1].id
		}
		return false
	}
	if src.after != from {
		return false // reread came between
	}
	if len(msgs) == 0 {
		src.after = newOnly
		return true
	}
	src.after = msgs[len(msgs)-1].id
	return false
}

func (src *source) forget(entries []*queueEntry) {
	src.mu.Lock()
	defer src.mu.Unlock()
	for _, e := range entries {
		delete(src.held, e.id)
	}
}

// heldBefore returns the ids that were read before t and are still in memory.
func (src *source) heldBefore(t time.Time) []string {
	src.mu.Lock()
	defer src.mu.Unlock()
	var ids []string
	for id, e := range src.held {
		if e.read.Before(t) {
			ids = append(ids, id)
		}
	}
	return ids
}
