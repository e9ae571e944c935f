package hub

import (
	"sync"
	"sync/atomic"

	"github.com/hubrelay/hubrelay/internal/streamid"
	"github.com/hubrelay/hubrelay/relay"
)

// feed is an order of broadcasts on this node: the order of one partition, which hub pipelines follow, or the node's
// merge of all partitions, which account pipelines follow. With one partition both are the same feed.
//
// Its lock is held while a notification is sent to all clients of the feed. So under the lock all clients have received
// everything up to the feed's position, and a client with this position can be added.
type feed struct {
	partitions     int // of the log
	firstPartition int // the partition of the first position
	maxBytes       int // bytes that may be kept
	deflater       *compressionBudget

	mu sync.Mutex
	// positions contains the position of the last broadcast of each partition. The history is complete after keptFrom.
	positions, keptFrom []streamid.Position
	// entries is the recent history in the feed's order. It starts at head, and that entry has the number base.
	entries []*feedEntry
	head    int
	baseSeq uint64
	size    int
	// endSeq is end for readers without mu.
	endSeq atomic.Uint64
	// seqs contains the numbers of the kept entries of each partition.
	seqs [][]uint64
	// resets counts discontinuities of a partition's positions.
	resets    int
	advanced  chan struct{} // closed by the next broadcast; nil if no goroutine waits
	cursorBuf []byte
}

// feedEntry is one notification in a line.
type feedEntry struct {
	notification   *relay.Notification
	partitionIndex int // its partition, counted from the line's first
	// before is the position before the entry, after the position after it.
	before, after streamid.Position
	frames        [formatCount][]byte // built on demand
	// savedBytes is by how much the compressed frames are shorter, without and with a cursor.
	savedBytes [formatCursor + 1]int32
	size       int // what it takes, while a line keeps it
}

// entryOverhead is the approximate memory of an entry besides its notification and frames.
const entryOverhead = 384

// makeFrame builds a frame that all clients of a format share, and returns its memory. Formats with cursors need
// cursor.
func (e *feedEntry) makeFrame(as frameFormat, cursor []byte, d *compressionBudget, live bool) (took int) {
	if as&formatDeflated == 0 {
		e.frames[as] = newFrame(e.notification.Data, as, cursor)
		return len(e.frames[as])
	}
	plain, saved := as&^formatDeflated, 0
	e.frames[as] = buildFrame(func(parts ...[]byte) (frame []byte) {
		frame, saved = d.compressFrame(live, parts)
		return frame
	}, e.notification.Data, as, cursor)
	e.savedBytes[plain] = int32(saved)
	if e.frames[as] != nil {
		return len(e.frames[as])
	}
	if e.frames[plain] == nil {
		e.frames[plain] = newFrame(e.notification.Data, plain, cursor)
		took = len(e.frames[plain])
	}
	e.frames[as] = e.frames[plain]
	return took
}

// savedFor is by how much a frame is shorter for being compressed.
func (e *feedEntry) savedFor(as frameFormat) int {
	if as&formatDeflated == 0 {
		return 0
	}
	return int(e.savedBytes[as&^formatDeflated])
}

func newFeed(partitions, first, count, most int, d *compressionBudget) *feed {
	return &feed{
		partitions: partitions, firstPartition: first, maxBytes: most, deflater: d,
		positions: make([]streamid.Position, count), keptFrom: make([]streamid.Position, count),
		seqs: make([][]uint64, count),
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
		e.size = len(e.notification.Data) + entryOverhead
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

// evictOldest removes the oldest entries until the limit is met.
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

// resetPartition continues a partition at another position. It discards the history, so replays read the log. The
// caller holds mu.
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

// frameFor returns an entry's frame in one format, for all clients at these positions. The caller holds mu.
func (l *feed) frameFor(e *feedEntry, as frameFormat, at []streamid.Position, live bool) []byte {
	if e.frames[as] == nil {
		var text []byte
		if as&(formatCursor|formatSSE) != 0 {
			text = l.formatCursor(at)
		}
		took := e.makeFrame(as, text, l.deflater, live)
		if e.size > 0 { // the next broadcast evicts others for it
			e.size += took
			l.size += took
		}
	}
	return e.frames[as]
}

// nextSeq is the number of the next entry. The caller holds mu.
func (l *feed) nextSeq() uint64 { return l.baseSeq + uint64(len(l.entries)-l.head) }

func (l *feed) entryAt(number uint64) *feedEntry { return l.entries[l.head+int(number-l.baseSeq)] }
