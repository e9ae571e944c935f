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
	// A read aims at readBytes, by the size of what was read before.
	targetReadBytes                = 256 << 10
	minReadCount, initialReadCount = 16, 64
	maxReadCount                   = 512
)

// logSegment is a piece of one partition's log that was read for replays.
type logSegment struct {
	partition int
	after     streamid.Position // the position before the first entry
	size      int

	mu      sync.Mutex // guards the frames of entries
	entries []feedEntry
}

// EntriesAfter returns the entries behind a position that the stretch knows, and that as the log has it; nil where it does not.
func (s *logSegment) EntriesAfter(at streamid.Position) ([]feedEntry, streamid.Position) {
	if at.Matches(s.after) {
		return s.entries, s.after
	}
	// By index: an entry's frames may be written meanwhile.
	i := sort.Search(len(s.entries), func(i int) bool { return s.entries[i].after.Compare(at) >= 0 })
	if i == len(s.entries) || !at.Matches(s.entries[i].after) {
		return nil, at
	}
	return s.entries[i+1:], s.entries[i].after
}

// historyCache reads the log for all replays of the node: what one has read serves those that come by later, wherever in it
// they begin, and those who want the same wait for one read.
type historyCache struct {
	source   History
	maxBytes int // bytes that are kept
	slots    chan struct{}

	mu            sync.Mutex
	chunks        []*logSegment // the one that was used last is the last
	size          int
	avgEntryBytes int // bytes of an entry, as read last
	inFlight      map[readKey]*sharedRead
}

// readKey is where a read begins.
type readKey struct {
	partition int
	at        streamid.Position
}

// sharedRead is a read under way.
type sharedRead struct {
	done  chan struct{}
	chunk *logSegment
	at    streamid.Position // as since returns it
	lost  bool              // read does not begin where it was to: that is gone
	err   error
}

func newHistory(log History, most int) *historyCache {
	return &historyCache{source: log, maxBytes: most, slots: make(chan struct{}, maxConcurrentReads), inFlight: make(map[readKey]*sharedRead)}
}

var errNoHistory = errors.New("there is no log to read")

// ReadFrom returns a stretch that knows what is behind a position, and that position as the log has it, or, where that is lost, a
// stretch that begins elsewhere, and where.
func (h *historyCache) ReadFrom(ctx context.Context, partition int, position streamid.Position) (s *logSegment, at streamid.Position, lost bool, err error) {
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
	if h.inFlight[where] == f { // else it was forgotten under way
		delete(h.inFlight, where)
		if f.err == nil {
			h.store(f.chunk)
		}
	}
	h.mu.Unlock()
	close(f.done)
	return f.chunk, f.at, f.lost, f.err
}

// Verify says whether all behind a position is there, and returns what since does beside the stretch. Anybody can make up a
// cursor that has to be proved for each partition, so that it reads as little as says it.
func (h *historyCache) Verify(ctx context.Context, partition int, position streamid.Position) (at streamid.Position, lost bool, err error) {
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
func (h *historyCache) read(ctx context.Context, where readKey) (*logSegment, streamid.Position, bool, error) {
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
	s := &logSegment{partition: where.partition, after: from, entries: make([]feedEntry, 0, len(list))}
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

// find looks for a stretch that has something behind where, and returns that position as the log has it. The caller holds mu.
func (h *historyCache) find(where readKey) (*logSegment, streamid.Position) {
	for i := len(h.chunks) - 1; i >= 0; i-- {
		s := h.chunks[i]
		if s.partition != where.partition {
			continue
		}
		if list, at := s.EntriesAfter(where.at); len(list) > 0 {
			h.chunks = append(append(h.chunks[:i], h.chunks[i+1:]...), s)
			return s, at
		}
	}
	return nil, where.at
}

// store takes a stretch in, and forgets others where that is too much. The caller holds mu.
func (h *historyCache) store(s *logSegment) {
	if len(s.entries) == 0 || slices.Contains(h.chunks, s) {
		return // where nothing is yet, something may be soon
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

// Invalidate drops what was read of a partition, whose log is not what it was, and what is being read: that serves those who
// wait for it already, and nobody else.
func (h *historyCache) Invalidate(partition int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.chunks = slices.DeleteFunc(h.chunks, func(s *logSegment) bool {
		if s.partition == partition {
			h.size -= s.size
			return true
		}
		return false
	})
	maps.DeleteFunc(h.inFlight, func(where readKey, _ *sharedRead) bool { return where.partition == partition })
}
