package hub

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sort"
	"sync"

	"github.com/hubrelay/hubrelay/internal/streamid"
)

const (
	// maxConcurrentReads bounds how many replays read the log at once.
	maxConcurrentReads = 4
	// targetReadBytes is the target size of a read. The count follows from the size of earlier entries.
	targetReadBytes                = 256 << 10
	minReadCount, initialReadCount = 16, 64
	maxReadCount                   = 512
)

// logChunk is a piece of one partition's log that was read for replays.
type logChunk struct {
	partition int
	after     streamid.Position // the position before the first entry
	size      int

	mu      sync.Mutex // guards the frames of entries
	entries []feedEntry
}

// entriesAfter returns the entries after a position in the chunk, and the position as stored in the log. It returns nil
// if the chunk does not contain it.
func (s *logChunk) entriesAfter(at streamid.Position) ([]feedEntry, streamid.Position) {
	if at.Matches(s.after) {
		return s.entries, s.after
	}
	// Use the index, because the frames of an entry may be written concurrently.
	i := sort.Search(len(s.entries), func(i int) bool { return s.entries[i].after.Compare(at) >= 0 })
	if i == len(s.entries) || !at.Matches(s.entries[i].after) {
		return nil, at
	}
	return s.entries[i+1:], s.entries[i].after
}

// historyCache reads the log for all replays of the node. Later replays reuse a chunk from any position in it, and
// concurrent ones share a read.
type historyCache struct {
	source   History
	maxBytes int // bytes that are kept
	slots    chan struct{}

	mu            sync.Mutex
	chunks        []*logChunk // the one that was used last is the last
	size          int
	avgEntryBytes int // bytes of an entry, as read last
	inFlight      map[readKey]*sharedRead
}

// readKey is the start of a read.
type readKey struct {
	partition int
	at        streamid.Position
}

// sharedRead is a read under way.
type sharedRead struct {
	done  chan struct{}
	chunk *logChunk
	at    streamid.Position // as since returns it
	lost  bool              // the start of the read was lost
	err   error
}

func newHistory(log History, most int) *historyCache {
	return &historyCache{
		source: log, maxBytes: most, slots: make(chan struct{}, maxConcurrentReads),
		inFlight: make(map[readKey]*sharedRead),
	}
}

var errNoHistory = errors.New("there is no log to read")

// readFrom returns a chunk that starts after a position, and that position as stored in the log. If the position was
// lost, it returns a chunk with another start, and that start.
func (h *historyCache) readFrom(
	ctx context.Context, partition int, position streamid.Position,
) (s *logChunk, at streamid.Position, lost bool, err error) {
	where := readKey{partition, position}
	h.mu.Lock()
	if s, at := h.find(where); s != nil {
		h.mu.Unlock()
		return s, at, false, nil
	}
	if f := h.inFlight[where]; f != nil {
		h.mu.Unlock()
		<-f.done
		return f.chunk, f.at, f.lost, f.err
	}
	f := &sharedRead{done: make(chan struct{})}
	h.inFlight[where] = f
	h.mu.Unlock()
	h.slots <- struct{}{}
	f.chunk, f.at, f.lost, f.err = h.read(ctx, where)
	<-h.slots
	h.mu.Lock()
	if h.inFlight[where] == f { // otherwise it was invalidated during the read
		delete(h.inFlight, where)
		if f.err == nil {
			h.store(f.chunk)
		}
	}
	h.mu.Unlock()
	close(f.done)
	return f.chunk, f.at, f.lost, f.err
}

// verify reports whether all entries after a position exist, and the position as stored in the log. Clients can forge
// cursors that require a check in each partition, so it reads as little as possible.
func (h *historyCache) verify(
	ctx context.Context, partition int, position streamid.Position,
) (at streamid.Position, lost bool, err error) {
	h.mu.Lock()
	s, at := h.find(readKey{partition, position})
	h.mu.Unlock()
	if s != nil {
		return at, false, nil
	}
	if h.source == nil {
		return at, false, errNoHistory
	}
	h.slots <- struct{}{}
	at, lost, _, err = h.source.ReadFrom(ctx, partition, position, 1)
	<-h.slots
	return at, lost, err
}

// read reads, unless another read has brought it while this one waited for its slot.
func (h *historyCache) read(ctx context.Context, where readKey) (*logChunk, streamid.Position, bool, error) {
	h.mu.Lock()
	if s, at := h.find(where); s != nil {
		h.mu.Unlock()
		return s, at, false, nil
	}
	count := initialReadCount
	if h.avgEntryBytes > 0 {
		count = min(max(targetReadBytes/h.avgEntryBytes, minReadCount), maxReadCount)
	}
	h.mu.Unlock()
	if h.source == nil {
		return nil, where.at, false, errNoHistory
	}
	from, lost, list, err := h.source.ReadFrom(ctx, where.partition, where.at, count)
	if err != nil {
		return nil, where.at, false, err
	}
	s := &logChunk{partition: where.partition, after: from, entries: make([]feedEntry, 0, len(list))}
	for i := range list {
		at, ok := streamid.ParseEntry(list[i].Cursor, list[i].ID)
		if !ok {
			break
		}
		s.entries = append(s.entries, feedEntry{notification: &list[i], after: at})
		s.size += 2*len(list[i].Data) + entryOverhead // once as it came, and once as a frame
	}
	return s, from, lost, nil
}

// find returns a cached chunk with entries after a position, and that position as stored in the log. The caller holds
// mu.
func (h *historyCache) find(where readKey) (*logChunk, streamid.Position) {
	for i := len(h.chunks) - 1; i >= 0; i-- {
		s := h.chunks[i]
		if s.partition != where.partition {
			continue
		}
		if list, at := s.entriesAfter(where.at); len(list) > 0 {
			h.chunks = append(append(h.chunks[:i], h.chunks[i+1:]...), s)
			return s, at
		}
	}
	return nil, where.at
}

// store caches a chunk and evicts others beyond the limit. The caller holds mu.
func (h *historyCache) store(s *logChunk) {
	if len(s.entries) == 0 || slices.Contains(h.chunks, s) {
		return // an empty result may change soon
	}
	h.avgEntryBytes = s.size / len(s.entries) / 2
	h.chunks = append(h.chunks, s)
	h.size += s.size
	for h.size > h.maxBytes {
		h.size -= h.chunks[0].size
		h.chunks[0] = nil
		h.chunks = h.chunks[1:]
	}
}

// invalidate drops the chunks of a partition whose log has changed, and detaches running reads, which only serve their
// current waiters.
func (h *historyCache) invalidate(partition int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.chunks = slices.DeleteFunc(h.chunks, func(s *logChunk) bool {
		if s.partition == partition {
			h.size -= s.size
			return true
		}
		return false
	})
	maps.DeleteFunc(h.inFlight, func(where readKey, _ *sharedRead) bool { return where.partition == partition })
}
