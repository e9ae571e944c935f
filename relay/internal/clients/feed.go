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
func (l *feed) appendBatch(partition int, list []relay.Notification) []feedEntry {
	batch := make([]feedEntry, len(list))
	at := &l.positions[partition-l.firstPartition]
	for i := range list {
		e := &batch[i]
		e.notification, e.partitionIndex, e.before, e.after = &list[i], partition-l.firstPartition, *at, *at
		if p, ok := streamid.ParseEntry(list[i].Cursor, list[i].ID); ok {
			e.after, *at = p, p
		}
		l.seqs[e.partitionIndex] = append(l.seqs[e.partitionIndex], l.nextSeq())
		l.entries = append(l.entries, e)
		e.size = len(e.notification.Data) + logcache.EntryOverhead
		l.size += e.size
	}
	l.endSeq.Store(l.nextSeq())
	l.evictOldest()
	if l.advanced != nil {
		close(l.advanced)
		l.advanced = nil
	}
	return batch
}

// evictOldest removes the oldest entries while there are more than maxBytes.
func (l *feed) evictOldest() {
	for l.size > l.maxBytes && l.head < len(l.entries) {
		e := l.entries[l.head]
		l.entries[l.head] = nil
		l.keptFrom[e.partitionIndex], l.seqs[e.partitionIndex] = e.after, l.seqs[e.partitionIndex][1:]
		l.size -= e.size
		e.size = 0
		l.head++
		l.baseSeq++
	}
	if l.head > 256 && l.head > len(l.entries)/2 {
		n := copy(l.entries, l.entries[l.head:])
		clear(l.entries[n:])
		l.entries, l.head = l.entries[:n], 0
	}
}

// resetPartition sets the position of a partition after a gap. It removes all entries, so replays read the log
// itself. The caller holds mu.
func (l *feed) resetPartition(partition int, at streamid.Position) {
	l.baseSeq += uint64(len(l.entries) - l.head)
	l.entries, l.head, l.size = nil, 0, 0
	clear(l.seqs)
	l.positions[partition-l.firstPartition] = at
	copy(l.keptFrom, l.positions)
	l.resets++
	if l.advanced != nil {
		close(l.advanced)
		l.advanced = nil
	}
}

// advancedChan returns a channel that the next broadcast closes. The caller holds mu.
func (l *feed) advancedChan() <-chan struct{} {
	if l.advanced == nil {
		l.advanced = make(chan struct{})
	}
	return l.advanced
}

// formatCursor returns the cursor of positions, which is valid until the next call. The caller holds mu.
func (l *feed) formatCursor(at []streamid.Position) []byte {
	l.cursorBuf = l.cursors.Append(l.cursorBuf[:0], l.partitions, l.firstPartition, at)
	return l.cursorBuf
}

// formatEndCursor returns a cursor of the end of the feed that differs on each call, because the client does not see
// every entry. It is valid until the next call. The caller holds mu.
func (l *feed) formatEndCursor() []byte {
	l.cursorBuf = l.cursors.AppendUnique(l.cursorBuf[:0], l.partitions, l.firstPartition, l.positions)
	return l.cursorBuf
}

// frameFor returns the frame of an entry for all clients that have seen the log up to the given positions. The caller
// holds mu.
func (l *feed) frameFor(e *feedEntry, as frame.Encoding, at []streamid.Position, live bool) []byte {
	if e.frames.Get(as) == nil {
		var text []byte
		if as&(frame.WithCursor|frame.SSE) != 0 {
			text = l.formatCursor(at)
		}
		took := e.frames.Make(e.notification, as, text, l.deflater, live)
		if e.size > 0 { // the next broadcast evicts others
			e.size += took
			l.size += took
		}
	}
	return e.frames.Get(as)
}

// nextSeq returns the sequence number of the next entry. The caller holds mu.
func (l *feed) nextSeq() uint64 { return l.baseSeq + uint64(len(l.entries)-l.head) }

func (l *feed) entryAt(number uint64) *feedEntry { return l.entries[l.head+int(number-l.baseSeq)] }
