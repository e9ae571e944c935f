package hub

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sort"
	"sync"

	"github.com/hubrelay/hubrelay/relay/cursor"
)

const (
	// maxReads bounds how many replays read the log at once.
	maxReads = 4
	// A read aims at readBytes, by the size of what was read before.
	readBytes            = 256 << 10
	leastRead, firstRead = 16, 64
	mostRead             = 512
)

// stretch is a piece of one partition's log that was read for replays.
type stretch struct {
	partition int
	after     cursor.Position // the position before the first entry
	size      int

	mu      sync.Mutex // guards the frames of entries
	entries []entry
}

// behind returns the entries behind a position that the stretch knows, and that as the log has it; nil where it does not.
func (s *stretch) behind(at cursor.Position) ([]entry, cursor.Position) {
	if at.Fits(s.after) {
		return s.entries, s.after
	}
	// By index: an entry's frames may be written meanwhile.
	i := sort.Search(len(s.entries), func(i int) bool { return s.entries[i].at.Compare(at) >= 0 })
	if i == len(s.entries) || !at.Fits(s.entries[i].at) {
		return nil, at
	}
	return s.entries[i+1:], s.entries[i].at
}

// history reads the log for all replays of the node: what one has read serves those that come by later, wherever in it
// they begin, and those who want the same wait for one read.
type history struct {
	log   History
	most  int // bytes that are kept
	slots chan struct{}

	mu      sync.Mutex
	kept    []*stretch // the one that was used last is the last
	size    int
	average int // bytes of an entry, as read last
	flights map[spot]*flight
}

// spot is where a read begins.
type spot struct {
	partition int
	at        cursor.Position
}

// flight is a read under way.
type flight struct {
	landed chan struct{}
	read   *stretch
	at     cursor.Position // as since returns it
	lost   bool            // read does not begin where it was to: that is gone
	err    error
}

func newHistory(log History, most int) *history {
	return &history{log: log, most: most, slots: make(chan struct{}, maxReads), flights: make(map[spot]*flight)}
}

var errNoHistory = errors.New("there is no log to read")

// since returns a stretch that knows what is behind a position, and that position as the log has it, or, where that is lost, a
// stretch that begins elsewhere, and where.
func (h *history) since(ctx context.Context, partition int, position cursor.Position) (s *stretch, at cursor.Position, lost bool, err error) {
	where := spot{partition, position}
	h.mu.Lock()
	if s, at := h.find(where); s != nil {
		h.mu.Unlock()
		return s, at, false, nil
	}
	if f := h.flights[where]; f != nil {
		h.mu.Unlock()
		<-f.landed
		return f.read, f.at, f.lost, f.err
	}
	f := &flight{landed: make(chan struct{})}
	h.flights[where] = f
	h.mu.Unlock()
	h.slots <- struct{}{}
	f.read, f.at, f.lost, f.err = h.read(ctx, where)
	<-h.slots
	h.mu.Lock()
	if h.flights[where] == f { // else it was forgotten under way
		delete(h.flights, where)
		if f.err == nil {
			h.keep(f.read)
		}
	}
	h.mu.Unlock()
	close(f.landed)
	return f.read, f.at, f.lost, f.err
}

// proof says whether all behind a position is there, and returns what since does beside the stretch. Anybody can make up a
// cursor that has to be proved for each partition, so that it reads as little as says it.
func (h *history) proof(ctx context.Context, partition int, position cursor.Position) (at cursor.Position, lost bool, err error) {
	h.mu.Lock()
	s, at := h.find(spot{partition, position})
	h.mu.Unlock()
	if s != nil {
		return at, false, nil
	}
	if h.log == nil {
		return at, false, errNoHistory
	}
	h.slots <- struct{}{}
	at, lost, _, err = h.log.Since(ctx, partition, position, 1)
	<-h.slots
	return at, lost, err
}

// read reads, unless another read has brought it while this one waited for its slot.
func (h *history) read(ctx context.Context, where spot) (*stretch, cursor.Position, bool, error) {
	h.mu.Lock()
	if s, at := h.find(where); s != nil {
		h.mu.Unlock()
		return s, at, false, nil
	}
	count := firstRead
	if h.average > 0 {
		count = min(max(readBytes/h.average, leastRead), mostRead)
	}
	h.mu.Unlock()
	if h.log == nil {
		return nil, where.at, false, errNoHistory
	}
	from, lost, list, err := h.log.Since(ctx, where.partition, where.at, count)
	if err != nil {
		return nil, where.at, false, err
	}
	s := &stretch{partition: where.partition, after: from, entries: make([]entry, 0, len(list))}
	for i := range list {
		at, ok := cursor.ParseEntry(list[i].Cursor, list[i].ID)
		if !ok {
			break
		}
		s.entries = append(s.entries, entry{n: &list[i], at: at})
		s.size += 2*len(list[i].Data) + entryOverhead // once as it came, and once as a frame
	}
	return s, from, lost, nil
}

// find looks for a stretch that has something behind where, and returns that position as the log has it. The caller holds mu.
func (h *history) find(where spot) (*stretch, cursor.Position) {
	for i := len(h.kept) - 1; i >= 0; i-- {
		s := h.kept[i]
		if s.partition != where.partition {
			continue
		}
		if list, at := s.behind(where.at); len(list) > 0 {
			h.kept = append(append(h.kept[:i], h.kept[i+1:]...), s)
			return s, at
		}
	}
	return nil, where.at
}

// keep takes a stretch in, and forgets others where that is too much. The caller holds mu.
func (h *history) keep(s *stretch) {
	if len(s.entries) == 0 || slices.Contains(h.kept, s) {
		return // where nothing is yet, something may be soon
	}
	h.average = s.size / len(s.entries) / 2
	h.kept = append(h.kept, s)
	h.size += s.size
	for h.size > h.most {
		h.size -= h.kept[0].size
		h.kept[0] = nil
		h.kept = h.kept[1:]
	}
}

// forget drops what was read of a partition, whose log is not what it was, and what is being read: that serves those who
// wait for it already, and nobody else.
func (h *history) forget(partition int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.kept = slices.DeleteFunc(h.kept, func(s *stretch) bool {
		if s.partition == partition {
			h.size -= s.size
			return true
		}
		return false
	})
	maps.DeleteFunc(h.flights, func(where spot, _ *flight) bool { return where.partition == partition })
}
