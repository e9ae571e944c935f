package clients

import (
	"sync"
	"sync/atomic"

	"github.com/hubrelay/hubrelay/internal/streamid"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/clients/frame"
	"github.com/hubrelay/hubrelay/relay/internal/clients/logcache"
)

// feed is an order in which this node broadcasts: the order of one partition, which hub streams follow, or the
// node's merge of all partitions, which account streams follow. With one partition both are the same feed.
//
// Its lock is held while an entry is sent to all clients of the feed. Under the lock, all of them have everything up
// to the position of the feed, so a client that has seen as much can join.
type feed struct {
	partitions     int // of the log
	firstPartition int // the partition of the first position
	maxBytes       int // of entries
	deflater       *frame.Deflater
	cursors        *streamid.Cursors

	mu sync.Mutex
	// positions are the positions of the last broadcasts. All entries after keptFrom are in entries. Both have one
	// element per partition.
	positions, keptFrom []streamid.Position
	// entries is the recent history, from index head on. The first entry has the sequence number baseSeq.
	entries []*feedEntry
	head    int
	baseSeq uint64
	size    int
	// endSeq is nextSeq, for readers without mu.
	endSeq atomic.Uint64
	// seqs are the sequence numbers of the entries of each partition.
	seqs [][]uint64
	// resets counts the calls of resetPartition.
	resets    int
	advanced  chan struct{} // closed by the next broadcast; nil without waiters
	cursorBuf []byte
}

// feedEntry is one notification in a feed.
type feedEntry struct {
	notification   *relay.Notification
	partitionIndex int // index of its partition in the feed
	// before and after are the positions around the entry.
	before, after streamid.Position
	frames        frame.Set
	size          int // memory, while it is in entries
}

func newFeed(partitions, first, count, most int, d *frame.Deflater, cursors *streamid.Cursors) *feed {
	return &feed{
		partitions: partitions, firstPartition: first, maxBytes: most, deflater: d, cursors: cursors,
		positions: make([]streamid.Position, count), keptFrom: make([]streamid.Position, count),
		seqs: make([][]uint64, count),
	}
}

// appendBatch appends notifications of one partition. The caller holds mu.
func (f *feed) appendBatch(partition int, list []relay.Notification) []feedEntry {
	batch := make([]feedEntry, len(list))
	at := &f.positions[partition-f.firstPartition]
	for i := range list {
		e := &batch[i]
		e.notification, e.partitionIndex, e.before, e.after = &list[i], partition-f.firstPartition, *at, *at
		if p, ok := streamid.ParseEntry(list[i].Cursor, list[i].ID); ok {
			e.after, *at = p, p
		}
		f.seqs[e.partitionIndex] = append(f.seqs[e.partitionIndex], f.nextSeq())
		f.entries = append(f.entries, e)
		e.size = len(e.notification.Data) + logcache.EntryOverhead
		f.size += e.size
	}
	f.endSeq.Store(f.nextSeq())
	f.evictOldest()
	if f.advanced != nil {
		close(f.advanced)
		f.advanced = nil
	}
	return batch
}

// evictOldest removes the oldest entries while there are more than maxBytes.
func (f *feed) evictOldest() {
	for f.size > f.maxBytes && f.head < len(f.entries) {
		e := f.entries[f.head]
		f.entries[f.head] = nil
		f.keptFrom[e.partitionIndex], f.seqs[e.partitionIndex] = e.after, f.seqs[e.partitionIndex][1:]
		f.size -= e.size
		e.size = 0
		f.head++
		f.baseSeq++
	}
	if f.head > 256 && f.head > len(f.entries)/2 {
		n := copy(f.entries, f.entries[f.head:])
		clear(f.entries[n:])
		f.entries, f.head = f.entries[:n], 0
	}
}

// resetPartition sets the position of a partition after a gap. It removes all entries, so replays read the log
// itself. The caller holds mu.
func (f *feed) resetPartition(partition int, at streamid.Position) {
	f.baseSeq += uint64(len(f.entries) - f.head)
	f.entries, f.head, f.size = nil, 0, 0
	clear(f.seqs)
	f.positions[partition-f.firstPartition] = at
	copy(f.keptFrom, f.positions)
	f.resets++
	if f.advanced != nil {
		close(f.advanced)
		f.advanced = nil
	}
}

// advancedChan returns a channel that the next broadcast closes. The caller holds mu.
func (f *feed) advancedChan() <-chan struct{} {
	if f.advanced == nil {
		f.advanced = make(chan struct{})
	}
	return f.advanced
}

// formatCursor returns the cursor of positions, which is valid until the next call. The caller holds mu.
func (f *feed) formatCursor(at []streamid.Position) []byte {
	f.cursorBuf = f.cursors.Append(f.cursorBuf[:0], f.partitions, f.firstPartition, at)
	return f.cursorBuf
}

// formatEndCursor returns a cursor of the end of the feed that differs on each call, because the client does not see
// every entry. It is valid until the next call. The caller holds mu.
func (f *feed) formatEndCursor() []byte {
	f.cursorBuf = f.cursors.AppendUnique(f.cursorBuf[:0], f.partitions, f.firstPartition, f.positions)
	return f.cursorBuf
}

// frameFor returns the frame of an entry for all clients that have seen the log up to the given positions. The caller
// holds mu.
func (f *feed) frameFor(e *feedEntry, as frame.Encoding, at []streamid.Position, live bool) []byte {
	if e.frames.Get(as) == nil {
		var text []byte
		if as&(frame.WithCursor|frame.SSE) != 0 {
			text = f.formatCursor(at)
		}
		took := e.frames.Make(e.notification, as, text, f.deflater, live)
		if e.size > 0 { // the next broadcast evicts others
			e.size += took
			f.size += took
		}
	}
	return e.frames.Get(as)
}

// nextSeq returns the sequence number of the next entry. The caller holds mu.
func (f *feed) nextSeq() uint64 { return f.baseSeq + uint64(len(f.entries)-f.head) }

func (f *feed) entryAt(number uint64) *feedEntry { return f.entries[f.head+int(number-f.baseSeq)] }
