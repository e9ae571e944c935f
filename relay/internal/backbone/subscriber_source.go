package backbone

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

const (
	pendingFromStart = "0"
	newEntries       = ">"
)

// queueEntry is one entry of a stream from the moment it was read until its ack is stored or it was given back.
type queueEntry struct {
	src  *streamState
	id   string
	body []byte // see stored
	read time.Time
	key  string
	msg  *message.Message // built ahead for the key, or nil
}

// buildMessage returns a message that no handler has seen.
func (e *queueEntry) buildMessage() *message.Message {
	if e.msg != nil {
		return e.msg
	}
	var all stringArena
	all.reserve(e.body)
	m := message.NewMessage("", nil)
	eachField(e.body, func(key, value []byte) bool {
		switch string(key) {
		case fieldID:
			m.UUID = all.copyString(value)
		case fieldData:
			m.Payload = value
		case "topic": // a constant key costs no memory
			m.Metadata["topic"] = all.copyString(value)
		case "hub":
			m.Metadata["hub"] = all.copyString(value)
		case "account":
			m.Metadata["account"] = all.copyString(value)
		default:
			m.Metadata[string(key)] = all.copyString(value)
		}
		return true
	})
	m.Metadata[metadataCursor] = e.id
	e.msg = m
	return m
}

func isDecodable(body []byte) bool {
	var id, data bool
	eachField(body, func(key, value []byte) bool {
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

// streamState is one stream of a topic and what this node holds of it.
type streamState struct {
	stream string
	topic  *topicQueue
	reader atomic.Pointer[slotReader] // nil while nobody subscribes

	mu       sync.Mutex
	inMemory map[string]*queueEntry // by id: in memory, or acked and not yet stored
	// readFrom is where the next read begins: an id while this consumer's own pending entries are read, then newOnly.
	readFrom string
	last     string // last new id, for streams that keep what was acked
	// releasing counts the entries that are being given back: until that is stored nothing is read, since they come first.
	releasing int
	// releaseCount counts how often entries were given back, so that what was read before is noticed.
	releaseCount int
	// ackedWhilePending are ids whose ack was stored while own pending entries are read: the answer under way may still hold them.
	ackedWhilePending map[string]bool

	// These belong to the reader.
	groupExists bool      // the group was seen
	retryAt     time.Time // not to be read before, since the key is no stream

	// These belong to the keeper.
	cursor    string
	reclaimAt time.Time // when to look for abandoned entries
}

func newStreamState(stream string, t *topicQueue) *streamState {
	return &streamState{stream: stream, topic: t, inMemory: make(map[string]*queueEntry), readFrom: pendingFromStart, last: pendingFromStart, ackedWhilePending: make(map[string]bool)}
}

func (src *streamState) attach(r *slotReader) {
	src.restartPending()
	src.reader.Store(r)
	r.add(src)
}

func (src *streamState) detach() {
	if r := src.reader.Swap(nil); r != nil {
		r.remove(src)
	}
}

// restartPending lets the reader begin with this consumer's pending entries again.
func (src *streamState) restartPending() {
	src.mu.Lock()
	src.readFrom = pendingFromStart
	src.mu.Unlock()
}

func (src *streamState) position() string {
	src.mu.Lock()
	defer src.mu.Unlock()
	return src.readFrom
}

// accept keeps what was read or claimed, and sorts it: entries to work on, ids without an entry, and bad entries. While
// own pending entries are being read, claimed ones join them instead, so that they come in order.
func (src *streamState) accept(msgs []rawEntry, claimed bool) (fresh []*queueEntry, dead []string, bad []rawEntry) {
	block := make([]queueEntry, len(msgs))
	fresh = make([]*queueEntry, 0, len(msgs))
	now := time.Now()
	src.mu.Lock()
	defer src.mu.Unlock()
	if claimed && src.readFrom != newEntries {
		src.readFrom = pendingFromStart
		return nil, nil, nil
	}
	for i, m := range msgs {
		if _, ok := src.inMemory[m.id]; ok || src.ackedWhilePending[m.id] {
			continue
		}
		switch {
		case m.body == nil: // pending, but trimmed away
			dead = append(dead, m.id)
		case !isDecodable(m.body):
			bad = append(bad, m)
		default:
			e := &block[i]
			*e = queueEntry{src: src, id: m.id, body: m.body, read: now}
			src.inMemory[m.id] = e
			fresh = append(fresh, e)
		}
	}
	if !claimed {
		clear(src.ackedWhilePending)
	}
	return fresh, dead, bad
}

// moveTo moves the position behind msgs, the answer to a read that began after from. own is true when the last of this
// consumer's own pending entries has been read. Where ok is false, reread came between: msgs come again, in order.
func (src *streamState) moveTo(from string, msgs []rawEntry) (own, ok bool) {
	src.mu.Lock()
	defer src.mu.Unlock()
	switch {
	case src.readFrom != from || src.releasing > 0:
		src.readFrom = pendingFromStart
		clear(src.ackedWhilePending)
		return false, false
	case len(msgs) == 0:
		src.readFrom = newEntries
		clear(src.ackedWhilePending)
		return from != newEntries, true
	case from == newEntries:
		src.last = msgs[len(msgs)-1].id
	default:
		src.readFrom = msgs[len(msgs)-1].id
	}
	return false, true
}

// markReleasing says that entries are being given back. It is called before a next subscription may begin.
func markReleasing(entries []*queueEntry) {
	for _, e := range entries {
		e.src.mu.Lock()
		e.src.releasing++
		e.src.mu.Unlock()
	}
}

// released says that n entries were given back, and must be read before what is newer.
func (src *streamState) released(n int) {
	src.mu.Lock()
	src.releasing -= n
	src.releaseCount++
	src.readFrom = pendingFromStart
	src.mu.Unlock()
}

func (src *streamState) isReleasing() bool {
	src.mu.Lock()
	defer src.mu.Unlock()
	return src.releasing > 0
}

// releases is what overtaken compares.
func (src *streamState) releases() int {
	src.mu.Lock()
	defer src.mu.Unlock()
	return src.releaseCount
}

// releasedSince tells whether entries are being given back, or were since returned: those come before what was read then.
func (src *streamState) releasedSince(returns int) bool {
	src.mu.Lock()
	defer src.mu.Unlock()
	return src.releasing > 0 || src.releaseCount != returns
}

func (src *streamState) remove(entries []*queueEntry, acked bool) {
	src.mu.Lock()
	defer src.mu.Unlock()
	for _, e := range entries {
		delete(src.inMemory, e.id)
		if acked && src.readFrom != newEntries {
			src.ackedWhilePending[e.id] = true
		}
	}
}

// heldBefore returns the ids that were read before t and are still in memory.
func (src *streamState) heldBefore(t time.Time) []string {
	src.mu.Lock()
	defer src.mu.Unlock()
	var ids []string
	for id, e := range src.inMemory {
		if e.read.Before(t) {
			ids = append(ids, id)
		}
	}
	return ids
}
