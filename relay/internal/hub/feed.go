package hub

import (
	"sync"
	"sync/atomic"

	"github.com/hubrelay/hubrelay/internal/streamid"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/hub/frame"
	"github.com/hubrelay/hubrelay/relay/internal/hub/history"
)

// feed is an order in which this node broadcasts: that of one partition, which hub pipelines follow, or the node's merge
// of all partitions, which account pipelines follow. With one partition both are the same line.
//
// Its lock is held while a notification is given to all clients that follow the line. Whoever holds it knows that
// everybody has everything up to the line's position, so that is where a client is added that has seen as much.
type feed struct {
	partitions     int // of the log
	firstPartition int // the partition of the first position
	maxBytes       int // bytes that may be kept
	deflater       *frame.Deflater

	mu sync.Mutex
	// positions is the position of the last broadcast in each partition, and floor the one behind which everything is kept.
	positions, keptFrom []streamid.Position
	// entries is the recent history in the line's order: from head on, the first of which has the number base.
	entries []*feedEntry
	head    int
	baseSeq uint64
	size    int
	// endSeq is end, for whoever does not hold mu.
	endSeq atomic.Uint64
	// seqs are those of what is kept of each partition.
	seqs [][]uint64
	// resets counts the times that a partition's positions did not go on where they were.
	resets    int
	advanced  chan struct{} // closed by the next broadcast; nil where nobody waits
	cursorBuf []byte
}

// feedEntry is one notification in a line.
type feedEntry struct {
	notification   *relay.Notification
	partitionIndex int // its partition, counted from the line's first
	// before is the position before it and at the one behind it.
	before, after streamid.Position
	frames        frame.Set
	size          int // what it takes, while a line keeps it
}

func newFeed(partitions, first, count, most int, d *frame.Deflater) *feed {
	return &feed{
		partitions: partitions, firstPartition: first, maxBytes: most, deflater: d,
		positions: make([]streamid.Position, count), keptFrom: make([]streamid.Position, count), seqs: make([][]uint64, count),
	}
}

// appendBatch moves the line on by notifications of one partition. The caller holds mu.
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
		e.size = len(e.notification.Data) + history.EntryOverhead
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

// evictOldest forgets the oldest entries where there are too many.
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

// resetPartition says that a partition goes on from another position than it was at. What was kept is forgotten: who comes back
// asks the log itself. The caller holds mu.
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

// advancedChan returns what the next broadcast closes. The caller holds mu.
func (l *feed) advancedChan() <-chan struct{} {
	if l.advanced == nil {
		l.advanced = make(chan struct{})
	}
	return l.advanced
}

// formatCursor is the text of positions, valid until the next call. The caller holds mu.
func (l *feed) formatCursor(at []streamid.Position) []byte {
	l.cursorBuf = streamid.Append(l.cursorBuf[:0], l.partitions, l.firstPartition, at)
	return l.cursorBuf
}

// frameFor is an entry's frame in one form for all clients who have seen the log up to these positions. The caller holds mu.
func (l *feed) frameFor(e *feedEntry, as frame.Encoding, at []streamid.Position, live bool) []byte {
	if e.frames.Get(as) == nil {
		var text []byte
		if as&(frame.WithCursor|frame.SSE) != 0 {
			text = l.formatCursor(at)
		}
		took := e.frames.Make(e.notification.Data, as, text, l.deflater, live)
		if e.size > 0 { // the next broadcast forgets others for it
			e.size += took
			l.size += took
		}
	}
	return e.frames.Get(as)
}

// nextSeq is the number of the next entry. The caller holds mu.
func (l *feed) nextSeq() uint64 { return l.baseSeq + uint64(len(l.entries)-l.head) }

func (l *feed) entryAt(number uint64) *feedEntry { return l.entries[l.head+int(number-l.baseSeq)] }
