package subscriber

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/hubrelay/hubrelay/relay/internal/resp"
)

// The positions of XREADGROUP that are not IDs.
const (
	pendingFromStart = "0"
	newEntries       = ">"
)

// queueEntry is an entry in memory, until its ack or release is stored.
type queueEntry struct {
	st   *streamState
	id   string
	body []byte // see [resp.Entry]
	read time.Time
	key  string
	// stored is set with the ack if the handler has stored the content elsewhere. See [MarkStored].
	stored bool
	msg    *message.Message // built early for the ordering key, or nil
}

// buildMessage returns a message that no handler has received.
func (e *queueEntry) buildMessage() *message.Message {
	if e.msg != nil {
		return e.msg
	}
	var arena resp.StringArena
	arena.Grow(e.body)
	m := message.NewMessage("", nil)
	resp.EachField(e.body, func(key, value []byte) bool {
		switch string(key) {
		case resp.FieldID:
			m.UUID = arena.Copy(value)
		case resp.FieldData:
			m.Payload = value
		case "topic": // a constant key needs no allocation
			m.Metadata["topic"] = arena.Copy(value)
		case "hub":
			m.Metadata["hub"] = arena.Copy(value)
		case "account":
			m.Metadata["account"] = arena.Copy(value)
		default:
			m.Metadata[string(key)] = arena.Copy(value)
		}
		return true
	})
	m.Metadata[metadataCursor] = e.id
	e.msg = m
	return m
}

func isDecodable(body []byte) bool {
	var id, data bool
	resp.EachField(body, func(key, value []byte) bool {
		switch string(key) {
		case resp.FieldID:
			id = len(value) > 0
		case resp.FieldData:
			data = true
		}
		return !id || !data
	})
	return id && data
}

// streamState is a stream of a topic and its entries in memory.
type streamState struct {
	name   string
	topic  *topicQueue
	reader atomic.Pointer[slotReader] // nil without a subscription

	mu       sync.Mutex
	inMemory map[string]*queueEntry // by ID, until the ack or release is stored
	// readFrom is the position of the next read: an ID while this consumer's pending entries are read, then newEntries.
	readFrom string
	last     string // last new ID, for streams that keep acked entries
	// releasing is the number of entries whose release is not stored. Until then the stream is not read, because these
	// entries come first.
	releasing int
	// releaseCount is the number of releases. A change means that an earlier read is outdated.
	releaseCount int
	// ackedWhilePending contains entries whose ack was stored while pending entries are read. The current reply may
	// still contain them.
	ackedWhilePending map[string]bool

	// The following fields belong to the reader.
	groupExists bool      // or has existed
	needsGroup  bool      // a full Redis has rejected the group
	entryBytes  int       // size of the largest entry of recent reads, 0 before the first one
	retryAt     time.Time // do not read earlier, because the key is not a stream or its group cannot be created

	// The following fields belong to the reclaimer.
	cursor    string    // of XAUTOCLAIM
	reclaimAt time.Time // time of the next search for idle entries
	releases  int       // countReleases before the search
}

func newStreamState(name string, t *topicQueue) *streamState {
	return &streamState{
		name: name, topic: t, readFrom: pendingFromStart, last: pendingFromStart,
		inMemory: make(map[string]*queueEntry), ackedWhilePending: make(map[string]bool),
	}
}

func (st *streamState) attachReader(r *slotReader) {
	st.restartPending()
	st.reader.Store(r)
	r.add(st)
}

func (st *streamState) detachReader() {
	if r := st.reader.Swap(nil); r != nil {
		r.remove(st)
	}
}

// restartPending makes the reader read this consumer's pending entries again.
func (st *streamState) restartPending() {
	st.mu.Lock()
	st.readFrom = pendingFromStart
	st.mu.Unlock()
}

func (st *streamState) readPosition() string {
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.readFrom
}

// recordSize records the size of the largest entry. The size decreases slowly, because large entries may follow small ones.
func (st *streamState) recordSize(entries []resp.Entry) {
	if len(entries) > 0 {
		st.entryBytes = max(st.entryBytes*7/8, resp.LargestBody(entries), 1)
	}
}

// acceptEntries stores entries that were read, and returns the new ones, the pending IDs without entry, and the malformed
// entries.
func (st *streamState) acceptEntries(entries []resp.Entry) (
	fresh []*queueEntry, deleted []string, malformed []resp.Entry,
) {
	block := make([]queueEntry, len(entries))
	fresh = make([]*queueEntry, 0, len(entries))
	now := time.Now()
	st.mu.Lock()
	defer st.mu.Unlock()
	for i, raw := range entries {
		if _, ok := st.inMemory[raw.ID]; ok || st.ackedWhilePending[raw.ID] {
			continue
		}
		switch {
		case raw.Body == nil:
			deleted = append(deleted, raw.ID)
		case !isDecodable(raw.Body):
			malformed = append(malformed, raw)
		default:
			e := &block[i]
			*e = queueEntry{st: st, id: raw.ID, body: raw.Body, read: now}
			st.inMemory[raw.ID] = e
			fresh = append(fresh, e)
		}
	}
	clear(st.ackedWhilePending)
	return fresh, deleted, malformed
}

// advancePosition moves the position after entries, the reply to a read from a position. If they are truncated, the rest
// is pending and read next. pendingDone is true if all pending entries have been read. ok is false if the position changed
// during the read. Then the entries are read again, in order.
func (st *streamState) advancePosition(from string, entries []resp.Entry, truncated bool) (pendingDone, ok bool) {
	st.mu.Lock()
	defer st.mu.Unlock()
	switch {
	case st.readFrom != from || st.releasing > 0:
		st.readFrom = pendingFromStart
		clear(st.ackedWhilePending)
		return false, false
	case len(entries) == 0:
		st.readFrom = newEntries
		clear(st.ackedWhilePending)
		return from != newEntries, true
	case from == newEntries:
		st.last = entries[len(entries)-1].ID
		if truncated {
			st.readFrom = st.last
		}
	default:
		st.readFrom = entries[len(entries)-1].ID
	}
	return false, true
}

// markReleasing stops reads until the release of the entries is stored. Call it before the next subscription may begin.
func markReleasing(entries []*queueEntry) {
	for _, e := range entries {
		e.st.mu.Lock()
		e.st.releasing++
		e.st.mu.Unlock()
	}
}

// recordRelease records that the release of n entries is stored. They must be read before new entries.
func (st *streamState) recordRelease(n int) {
	st.mu.Lock()
	st.releasing -= n
	st.releaseCount++
	st.readFrom = pendingFromStart
	st.mu.Unlock()
}

func (st *streamState) isReleasing() bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.releasing > 0
}

// countReleases returns the number of releases, for hasReleasedSince.
func (st *streamState) countReleases() int {
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.releaseCount
}

// hasReleasedSince reports whether entries are being released, or were released since. They come before what was read.
func (st *streamState) hasReleasedSince(releases int) bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.releasing > 0 || st.releaseCount != releases
}

func (st *streamState) remove(entries []*queueEntry, acked bool) {
	st.mu.Lock()
	defer st.mu.Unlock()
	for _, e := range entries {
		delete(st.inMemory, e.id)
		if acked && st.readFrom != newEntries {
			st.ackedWhilePending[e.id] = true
		}
	}
}

// countNew returns the number of IDs that are not in memory.
func (st *streamState) countNew(ids []string) int {
	st.mu.Lock()
	defer st.mu.Unlock()
	n := 0
	for _, id := range ids {
		if _, ok := st.inMemory[id]; !ok {
			n++
		}
	}
	return n
}

// heldBefore returns the IDs of entries in memory that were read before t.
func (st *streamState) heldBefore(t time.Time) []string {
	st.mu.Lock()
	defer st.mu.Unlock()
	var ids []string
	for id, e := range st.inMemory {
		if e.read.Before(t) {
			ids = append(ids, id)
		}
	}
	return ids
}
