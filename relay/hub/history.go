package hub

import (
	"context"
	"errors"
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

// behind returns the entries behind a position that the stretch knows; nil where it does not.
func (s *stretch) behind(at cursor.Position) []entry {
	if s.after == at {
		return s.entries
	}
	// By index: an entry's frames may be written meanwhile.
	i := sort.Search(len(s.entries), func(i int) bool { return s.entries[i].at.Compare(at) >= 0 })
	if i == len(s.entries) || s.entries[i].at != at {
		return nil
	}
	return s.entries[i+1:]
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
	lost   bool // read does not begin where it was to: that is gone
	err    error
}

func newHistory(log History, most int) *history {
	return &history{log: log, most: most, slots: make(chan struct{}, maxReads), flights: make(map[spot]*flight)}
}

var errNoHistory = errors.New("there is no log to read")

// since returns a stretch that knows what is behind a position, or, where that is lost, one that begins elsewhere.
func (h *history) since(ctx context.Context, partition int, at cursor.Position) (s *stretch, lost bool, err error) {
	where := spot{partition, at}
	h.mu.Lock()
	if s := h.find(where); s != nil {
		h.mu.Unlock()
		return s, false, nil
	}
	if f := h.flights[where]; f != nil {
		h.mu.Unlock()
		<-f.landed
		return f.read, f.lost, f.err
	}
	f := &flight{landed: make(chan struct{})}
	h.flights[where] = f
	h.mu.Unlock()
	h.slots <- struct{}{}
	f.read, f.lost, f.err = h.read(ctx, where)
	<-h.slots
	h.mu.Lock()
	delete(h.flights, where)
	if f.err == nil {
		h.keep(f.read)
	}
	h.mu.Unlock()
	close(f.landed)
	return f.read, f.lost, f.err
}

// read reads, unless another read has brought it while this one waited for its slot.
func (h *history) read(ctx context.Context, where spot) (*stretch, bool, error) {
	h.mu.Lock()
	if s := h.find(where); s != nil {
		h.mu.Unlock()
		return s, false, nil
	}
	count := firstRead
	if h.average > 0 {
		count = min(max(readBytes/h.average, leastRead), mostRead)
	}
	h.mu.Unlock()
	if h.log == nil {
		return nil, false, errNoHistory
	}
	from, lost, list, err := h.log.Since(ctx, where.partition, where.at.String(), count)
	if err != nil {
		return nil, false, err
	}
	s := &stretch{partition: where.partition, after: where.at, entries: make([]entry, 0, len(list))}
	if lost {
		s.after, _ = cursor.ParsePosition(from)
	}
	for i := range list {
		at, ok := cursor.ParsePosition(list[i].Cursor)
		if !ok {
			break
		}
		s.entries = append(s.entries, entry{n: &list[i], at: at})
		s.size += s.entries[i].size()
	}
	return s, lost, nil
}

// find looks for a stretch that has something behind where. The caller holds mu.
func (h *history) find(where spot) *stretch {
	for i := len(h.kept) - 1; i >= 0; i-- {
		s := h.kept[i]
		if s.partition == where.partition && len(s.behind(where.at)) > 0 {
			h.kept = append(append(h.kept[:i], h.kept[i+1:]...), s)
			return s
		}
	}
	return nil
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

// forget drops what was read of a partition, whose log is not what it was.
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
}
