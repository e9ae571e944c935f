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
	var all texts
	all.grow(e.body)
	m := message.NewMessage("", nil)
	fields(e.body, func(key, value []byte) bool {
		switch string(key) {
		case fieldID:
			m.UUID = all.of(value)
		case fieldData:
			m.Payload = value
		case "topic": // a constant key costs no memory
			m.Metadata["topic"] = all.of(value)
		case "hub":
			m.Metadata["hub"] = all.of(value)
		case "account":
			m.Metadata["account"] = all.of(value)
		default:
			m.Metadata[string(key)] = all.of(value)
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
	// leaving counts the entries that are being given back: until that is stored nothing is read, since they come first.
	leaving int
	// returns counts how often entries were given back, so that what was read before is noticed.
	returns int
	// gone are ids whose ack was stored while own pending entries are read: the answer under way may still hold them.
	gone map[string]bool

	// These belong to the reader.
	grouped bool      // the group was seen
	retry   time.Time // not to be read before, since the key is no stream

	// These belong to the keeper.
	cursor string
	claim  time.Time // when to look for abandoned entries
}

func newSource(stream string, t *topic) *source {
	return &source{stream: stream, topic: t, held: make(map[string]*queueEntry), after: fromStart, last: fromStart, gone: make(map[string]bool)}
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
		if _, ok := src.held[m.id]; ok || src.gone[m.id] {
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
	if !claimed {
		clear(src.gone)
	}
	return fresh, dead, bad
}

// advance moves the position behind msgs, the answer to a read that began after from. own is true when the last of this
// consumer's own pending entries has been read. Where ok is false, reread came between: msgs come again, in order.
func (src *source) advance(from string, msgs []stored) (own, ok bool) {
	src.mu.Lock()
	defer src.mu.Unlock()
	switch {
	case src.after != from || src.leaving > 0:
		src.after = fromStart
		clear(src.gone)
		return false, false
	case len(msgs) == 0:
		src.after = newOnly
		clear(src.gone)
		return from != newOnly, true
	case from == newOnly:
		src.last = msgs[len(msgs)-1].id
	default:
		src.after = msgs[len(msgs)-1].id
	}
	return false, true
}

// leave says that entries are being given back. It is called before a next subscription may begin.
func leave(entries []*queueEntry) {
	for _, e := range entries {
		e.src.mu.Lock()
		e.src.leaving++
		e.src.mu.Unlock()
	}
}

// left says that n entries were given back, and must be read before what is newer.
func (src *source) left(n int) {
	src.mu.Lock()
	src.leaving -= n
	src.returns++
	src.after = fromStart
	src.mu.Unlock()
}

func (src *source) isLeaving() bool {
	src.mu.Lock()
	defer src.mu.Unlock()
	return src.leaving > 0
}

// returned is what overtaken compares.
func (src *source) returned() int {
	src.mu.Lock()
	defer src.mu.Unlock()
	return src.returns
}

// overtaken tells whether entries are being given back, or were since returned: those come before what was read then.
func (src *source) overtaken(returns int) bool {
	src.mu.Lock()
	defer src.mu.Unlock()
	return src.leaving > 0 || src.returns != returns
}

func (src *source) forget(entries []*queueEntry, acked bool) {
	src.mu.Lock()
	defer src.mu.Unlock()
	for _, e := range entries {
		delete(src.held, e.id)
		if acked && src.after != newOnly {
			src.gone[e.id] = true
		}
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
