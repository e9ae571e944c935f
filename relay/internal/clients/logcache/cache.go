// Package logcache reads segments of the log for replays. Replays that need the same part of the log share one read and
// the result, and the number of concurrent reads is limited. Owners of replays take turns, because reads are the slowest part.
//
// It does not know connections. Package clients decides what a client may see.
package logcache

import (
	"context"
	"errors"
	"slices"
	"sort"
	"sync"

	"github.com/hubrelay/hubrelay/internal/await"
	"github.com/hubrelay/hubrelay/internal/streamid"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/clients/frame"
	"github.com/hubrelay/hubrelay/relay/internal/clients/turns"
)

const (
	// maxConcurrentReads limits the replays that read the log at once.
	maxConcurrentReads = 4
	// readsPerOwner is the maximum number of reads of one owner that run or wait for a slot. Its other reads wait for these.
	readsPerOwner = 1
	// A read requests as many entries as fit into targetReadBytes, estimated from the previous read.
	targetReadBytes                = 256 << 10
	minReadCount, initialReadCount = 4, 64
	maxReadCount                   = 512
)

// EntryOverhead approximates the memory of an entry in bytes, without its notification and frames.
const EntryOverhead = 384

// Log reads the log. Its method is called concurrently, a limited number of times at once. It may block, but not
// forever.
type Log interface {
	// ReadFrom returns up to count notifications of a partition after a position, in order and with their cursors. If
	// entries after the position were lost, it returns lost, and list starts after from. Otherwise from is the same
	// position, with the hash of the entry there.
	ReadFrom(ctx context.Context, partition int, after streamid.Position, count int) (
		from streamid.Position, lost bool, list []relay.Notification, err error,
	)
}

// Segment is a part of one partition's log.
type Segment struct {
	partition int
	after     streamid.Position // before the first entry
	size      int

	// Mu guards the frames of the entries. Everything else is constant.
	Mu      sync.Mutex
	entries []Entry
}

// Entry is one notification of a segment.
type Entry struct {
	Notification *relay.Notification
	After        streamid.Position // the position of the entry itself
	Frames       frame.Set         // guarded by Segment.Mu
}

// EntriesAfter returns the entries after a position, and that position as stored in the log. It returns nil if the
// segment does not contain the position.
func (s *Segment) EntriesAfter(at streamid.Position) ([]Entry, streamid.Position) {
	if at.Matches(s.after) {
		return s.entries, s.after
	}
	// By index, because a copy of an entry would read its frames without the lock.
	i := sort.Search(len(s.entries), func(i int) bool { return s.entries[i].After.Compare(at) >= 0 })
	if i == len(s.entries) || !at.Matches(s.entries[i].After) {
		return nil, at
	}
	return s.entries[i+1:], s.entries[i].After
}

// Cache reads the log for all replays of a node. It keeps recent segments and shares reads of the same position. Its
// methods may be called concurrently.
type Cache struct {
	source   Log
	maxBytes int // of all segments
	slots    *turns.Slots[struct{}]

	mu            sync.Mutex
	segments      []*Segment // least recently used first
	size          int
	avgEntryBytes int         // of the previous read
	epochs        map[int]int // counts the invalidations of each partition
	flights       map[flightKey]*sharedRead
}

// readKey identifies a read.
type readKey struct {
	partition int
	at        streamid.Position
}

// flightKey identifies a read between two invalidations.
type flightKey struct {
	readKey

	epoch int
}

// sharedRead is a read for replays of several owners. It waits for a slot in the first turn of one of them, so no owner waits for the
// turns of another.
type sharedRead struct {
	// Cache.mu guards the first three fields.
	callers  int             // replays that wait for the result
	isQueued bool            // it waits for a slot or has it
	owners   map[string]bool // owners that wait for a turn

	// ctx ends with the result, or when the last caller has left.
	ctx context.Context
	end context.CancelFunc

	done   chan struct{} // closed when the result is set
	result readResult
	err    error
}

// readResult holds the results of ReadFrom, without the error.
type readResult struct {
	segment *Segment
	at      streamid.Position
	lost    bool
}

// New returns a cache that keeps at most maxBytes of segments. A nil log is empty: every read fails.
func New(log Log, maxBytes int) *Cache {
	return &Cache{
		source: log, maxBytes: maxBytes, slots: turns.New(readsPerOwner, make([]struct{}, maxConcurrentReads)...),
		epochs: make(map[int]int), flights: make(map[flightKey]*sharedRead),
	}
}

var errNoLog = errors.New("read log: no log configured")

// ReadFrom returns a segment that contains a position, and the position as stored in the log. If entries after the
// position were lost, it returns lost, a segment that starts later, and the start of that segment. owner is the owner of the
// replay. It waits until ctx ends.
func (c *Cache) ReadFrom(ctx context.Context, owner string, partition int, position streamid.Position) (
	s *Segment, at streamid.Position, lost bool, err error,
) {
	key := readKey{partition, position}
	c.mu.Lock()
	if s, at := c.findSegment(key); s != nil {
		c.mu.Unlock()
		return s, at, false, nil
	}
	// A read that started before an invalidation serves no later caller.
	flight := flightKey{key, c.epochs[partition]}
	f := c.flights[flight]
	if f == nil {
		f = &sharedRead{owners: make(map[string]bool), done: make(chan struct{})}
		f.ctx, f.end = context.WithCancel(context.WithoutCancel(ctx))
		c.flights[flight] = f
	}
	f.callers++
	needsTurn := !f.isQueued && !f.owners[owner]
	if needsTurn {
		f.owners[owner] = true
	}
	c.mu.Unlock()
	if needsTurn {
		go c.readInTurn(owner, flight, f)
	}
	if _, err := await.Value(ctx, f.done); err != nil {
		c.removeCaller(flight, f)
		return nil, position, false, err
	}
	return f.result.segment, f.result.at, f.result.lost, f.err
}

// removeCaller removes a caller that no longer waits. A read without callers does not take place.
func (c *Cache) removeCaller(key flightKey, f *sharedRead) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if f.callers--; f.callers == 0 && c.flights[key] == f {
		delete(c.flights, key)
		f.end()
	}
}

// readInTurn reads in a turn of an owner, unless another owner of the read had a turn earlier.
func (c *Cache) readInTurn(owner string, key flightKey, f *sharedRead) {
	slot, acquired := c.slots.AcquireIf(f.ctx, owner, func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		isFirst := !f.isQueued
		f.isQueued = true
		return isFirst
	})
	if !acquired {
		return
	}
	defer c.slots.Release(owner, slot)
	f.result, f.err = c.read(f.ctx, key.readKey)
	c.mu.Lock()
	defer c.mu.Unlock()
	if f.err == nil && c.epochs[key.partition] == key.epoch {
		c.storeSegment(f.result.segment)
	}
	if c.flights[key] == f {
		delete(c.flights, key)
	}
	f.end()
	close(f.done)
}

// Verify reports whether all entries after a position exist, with the same results as ReadFrom. Clients can invent
// cursors that need one verification per partition, so it reads a single entry.
func (c *Cache) Verify(ctx context.Context, owner string, partition int, position streamid.Position) (
	at streamid.Position, lost bool, err error,
) {
	c.mu.Lock()
	s, at := c.findSegment(readKey{partition, position})
	c.mu.Unlock()
	if s != nil {
		return at, false, nil
	}
	if c.source == nil {
		return at, false, errNoLog
	}
	slot, acquired := c.slots.Acquire(ctx, owner)
	if !acquired {
		return at, false, ctx.Err()
	}
	defer c.slots.Release(owner, slot)
	at, lost, _, err = c.source.ReadFrom(ctx, partition, position, 1)
	return at, lost, err
}

// read reads the log, unless another read stored the segment while this one waited for its slot.
func (c *Cache) read(ctx context.Context, key readKey) (readResult, error) {
	c.mu.Lock()
	if s, at := c.findSegment(key); s != nil {
		c.mu.Unlock()
		return readResult{segment: s, at: at}, nil
	}
	count := initialReadCount
	if c.avgEntryBytes > 0 {
		count = min(max(targetReadBytes/c.avgEntryBytes, minReadCount), maxReadCount)
	}
	c.mu.Unlock()
	if c.source == nil {
		return readResult{at: key.at}, errNoLog
	}
	from, lost, list, err := c.source.ReadFrom(ctx, key.partition, key.at, count)
	if err != nil {
		return readResult{at: key.at}, err
	}
	s := &Segment{partition: key.partition, after: from, entries: make([]Entry, 0, len(list))}
	for i := range list {
		at, ok := streamid.ParseEntry(list[i].Cursor, list[i].ID)
		if !ok {
			break
		}
		s.entries = append(s.entries, Entry{Notification: &list[i], After: at})
		s.size += 2*len(list[i].Data) + EntryOverhead // the notification and one frame
	}
	return readResult{segment: s, at: from, lost: lost}, nil
}

// findSegment returns a segment with entries after a position, and that position as stored in the log.
// The caller holds mu.
func (c *Cache) findSegment(key readKey) (*Segment, streamid.Position) {
	for i := len(c.segments) - 1; i >= 0; i-- {
		s := c.segments[i]
		if s.partition != key.partition {
			continue
		}
		if list, at := s.EntriesAfter(key.at); len(list) > 0 {
			c.segments = append(append(c.segments[:i], c.segments[i+1:]...), s)
			return s, at
		}
	}
	return nil, key.at
}

// storeSegment adds a segment and evicts others if the cache is too large. The caller holds mu.
func (c *Cache) storeSegment(s *Segment) {
	if len(s.entries) == 0 || slices.Contains(c.segments, s) {
		return // an empty segment is at the end of the log, which grows
	}
	c.avgEntryBytes = s.size / len(s.entries) / 2
	c.segments = append(c.segments, s)
	c.size += s.size
	for c.size > c.maxBytes {
		c.size -= c.segments[0].size
		c.segments[0] = nil
		c.segments = c.segments[1:]
	}
}

// Invalidate removes all segments of a partition whose log has changed. Reads in flight serve their current callers
// only.
func (c *Cache) Invalidate(partition int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.epochs[partition]++
	c.segments = slices.DeleteFunc(c.segments, func(s *Segment) bool {
		if s.partition == partition {
			c.size -= s.size
			return true
		}
		return false
	})
}
