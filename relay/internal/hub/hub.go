package hub

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/hubrelay/hubrelay/internal/streamid"
	"github.com/hubrelay/hubrelay/relay/internal/hub/frame"
	"github.com/hubrelay/hubrelay/relay/internal/hub/history"
	"github.com/hubrelay/hubrelay/relay/internal/hub/transport"
)

// Options are the settings of a [Hub]. Zero values take the defaults.
type Options struct {
	// QueueBytes is how many bytes may wait for one client before it is closed as too slow (1 MiB). A single burst of a
	// Broadcast (up to 128 KiB, or one larger notification) is always taken by an empty queue.
	QueueBytes int
	// PingInterval is the time between two pings to a client (25 s).
	PingInterval time.Duration
	// PongTimeout is how long a client may stay silent after a ping before it is taken for dead (50 s). It is looked at
	// once each PingInterval.
	PongTimeout time.Duration
	// WriteTimeout is how long a socket may accept nothing while something is queued (10 s).
	WriteTimeout time.Duration
	// CloseTimeout is how long a client may take to accept a close frame and to answer it (5 s).
	CloseTimeout time.Duration
	// DrainPace is the time between two clients that are told to go when the hub is closed (5 ms), so that their next node
	// gets them one after the other. Many are told faster where Close has little time.
	DrainPace time.Duration
	// Limits bound how many clients there may be; the zero value bounds nothing.
	Limits Limits
	// Partitions is how many partitions the log has (1), and Partition says in which a hub's notifications are; nil where
	// there is one.
	Partitions int
	Partition  func(hub string) int
	// HistoryBytes bounds what is kept of the recent broadcasts of all partitions, for clients that come back with a cursor
	// (16 MiB, and of each partition no less than 1 MiB of it; as much again for account pipelines over several partitions, and
	// half of it for what was read from History). Every form in which clients get a notification counts.
	HistoryBytes int
	// History is the log, for what is not kept any more; nil has nothing.
	History history.Log
	// Compression is for websockets; the zero value compresses nothing.
	Compression Compression
	// Log receives what happens to clients; nil discards.
	Log *slog.Logger
	// Observer counts; nil counts nothing.
	Observer Observer
}

// Compression is the configuration of permessage-deflate.
type Compression = frame.Compression

// Observer counts what the hub does, for metrics. Its methods are called concurrently, often, and from the path of a
// broadcast: they must not block.
type Observer interface {
	// Connected is called once for each client that was upgraded, and says whether it understands compressed messages.
	Connected(compressed bool)
	// Disconnected is called once for each Connected.
	Disconnected(why CloseReason, compressed bool)
	// Rejected is called for each client that found a limit reached, before it was connected.
	Rejected(Limit)
	// Queued counts frames given to clients, whether written at once or queued.
	Queued(frames, bytes int)
	// Compressed counts those of them that were compressed, and by how many bytes they are shorter.
	Compressed(frames, saved int)
	// CompressionTime is called for each notification that was compressed, once for all who get it, and says how long it took.
	CompressionTime(took time.Duration)
	// CompressionSkipped is called for each that was not since the time for it was used up.
	CompressionSkipped()
	// ReplayStarted is called for each client that comes back with a cursor, and ReplayEnded once for each: it has caught
	// up, or is gone before.
	ReplayStarted()
	ReplayEnded(caughtUp bool)
	// Replayed counts notifications given to clients that come back.
	Replayed(from ReplaySource, frames int)
	// Resynced counts clients that were told that they may have missed something.
	Resynced(cause ResyncCause, clients int)
}

// ReplaySource is where a replay has a notification from.
type ReplaySource string

// The sources of replays.
const (
	FromMemory ReplaySource = "memory" // the recent history that this node keeps
	FromLog    ReplaySource = "log"    // what was read of the log, for this client or another
)

// ResyncCause says why a client may have missed something.
type ResyncCause string

// The causes of a resync.
const (
	ResyncCursor ResyncCause = "cursor" // what followed its cursor is not in the log
	ResyncLog    ResyncCause = "log"    // the log has lost something before this node read it
	ResyncSource ResyncCause = "source" // something of an upstream is missing in the log
)

// CloseReason says why a client's connection ended.
type CloseReason string

// The endings of a connection.
const (
	ClosedByClient      CloseReason = "client"   // it closed, or its connection broke
	ClosedProtocolError CloseReason = "protocol" // it broke RFC 6455, sent too much, or too large a message
	ClosedSlowConsumer  CloseReason = "slow"     // it read too slowly
	ClosedPingTimeout   CloseReason = "silent"   // it answered no ping
	ClosedKeyInvalid    CloseReason = "expired"  // its key expired, changed or was withdrawn
	ClosedDrain         CloseReason = "drain"    // the hub was closed
)

type noObserver struct{}

func (noObserver) Connected(bool)                 {}
func (noObserver) Disconnected(CloseReason, bool) {}
func (noObserver) Rejected(Limit)                 {}
func (noObserver) Queued(int, int)                {}
func (noObserver) Compressed(int, int)            {}
func (noObserver) CompressionTime(time.Duration)  {}
func (noObserver) CompressionSkipped()            {}
func (noObserver) ReplayStarted()                 {}
func (noObserver) ReplayEnded(bool)               {}
func (noObserver) Replayed(ReplaySource, int)     {}
func (noObserver) Resynced(ResyncCause, int)      {}

// Hub holds the clients of one node. All its methods may be called concurrently.
type Hub struct {
	opts            Options
	startedAt       time.Time
	upgrader        *transport.Upgrader
	index           *subscriptionIndex
	wheel           *pingWheel
	limits          *connectionLimiter
	broadcasts      sync.Pool // *fanout
	buffers         sync.Pool // *buffer
	blockingBuffers sync.Pool // *record
	// feeds are the orders of the partitions, and merged is that of all together.
	feeds      []*feed
	mergedFeed *feed
	history    *history.Cache
	deflater   *frame.Deflater // nil where nothing is compressed
	// replaySlots bound how many replays work at once, and how much, so that they never crowd the broadcasts out.
	replaySlots chan *replaySlot
	// ctx ends when the hub is closed.
	ctx  context.Context
	stop context.CancelFunc

	mu            sync.Mutex
	closed        bool
	connections   map[*connection]struct{}
	nextClientSeq uint64 // how many have been added
	// running counts the clients and their writing goroutines.
	running sync.WaitGroup
}

// minHistoryBytes is what is kept of each partition, however many there are, where there may be as much.
const minHistoryBytes = 1 << 20

// New returns a hub without clients. It starts nothing: call [Hub.Run] for the pings.
func New(o Options) *Hub {
	o.QueueBytes = cmp.Or(max(o.QueueBytes, 0), 1<<20)
	o.PingInterval = cmp.Or(max(o.PingInterval, 0), 25*time.Second)
	o.PongTimeout = cmp.Or(max(o.PongTimeout, 0), 50*time.Second)
	o.WriteTimeout = cmp.Or(max(o.WriteTimeout, 0), 10*time.Second)
	o.CloseTimeout = cmp.Or(max(o.CloseTimeout, 0), 5*time.Second)
	o.DrainPace = cmp.Or(max(o.DrainPace, 0), 5*time.Millisecond)
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Observer == nil {
		o.Observer = noObserver{}
	}
	o.Partitions = max(o.Partitions, 1)
	if o.Partition == nil {
		o.Partition = func(string) int { return 0 }
	}
	o.HistoryBytes = cmp.Or(max(o.HistoryBytes, 0), 16<<20)
	read := o.HistoryBytes / 2
	if o.Compression.Enabled {
		read -= read / 3 // it is there once more
	}
	h := &Hub{
		opts:            o,
		startedAt:       time.Now(),
		upgrader:        transport.NewUpgrader(),
		index:           newIndex(),
		wheel:           newPingWheel(o.PingInterval),
		limits:          newPlaces(o.Limits),
		broadcasts:      sync.Pool{New: func() any { return newBroadcast() }},
		buffers:         sync.Pool{New: func() any { return new(writeBuffer) }},
		blockingBuffers: sync.Pool{New: func() any { return new(blockingBuffer) }},
		connections:     make(map[*connection]struct{}),
		history:         history.New(o.History, read),
		deflater:        frame.NewDeflater(o.Compression, o.Observer),
		replaySlots:     newReplaySlots(max(1, runtime.GOMAXPROCS(0)/2)),
	}
	h.ctx, h.stop = context.WithCancel(context.Background())
	each := min(max(o.HistoryBytes/o.Partitions, minHistoryBytes), o.HistoryBytes)
	for p := range o.Partitions {
		h.feeds = append(h.feeds, newFeed(o.Partitions, p, 1, each, h.deflater))
	}
	h.mergedFeed = h.feeds[0]
	if o.Partitions > 1 {
		h.mergedFeed = newFeed(o.Partitions, 0, o.Partitions, o.HistoryBytes, h.deflater)
	}
	return h
}

// Start says at which position the broadcasts of a partition begin. It is called before anybody broadcasts or connects.
func (h *Hub) Start(partition int, at streamid.Position) {
	for _, l := range []*feed{h.feeds[partition], h.mergedFeed} {
		l.mu.Lock()
		l.positions[partition-l.firstPartition], l.keptFrom[partition-l.firstPartition] = at, at
		l.mu.Unlock()
	}
}

// feedFor is the order that a subscription follows.
func (h *Hub) feedFor(s *Subscription) *feed {
	if s.Hub == "" {
		return h.mergedFeed
	}
	return h.feeds[h.opts.Partition(s.Hub)]
}

// Run sends the pings, and closes clients that do not answer, until ctx ends. It returns nil.
func (h *Hub) Run(ctx context.Context) error {
	ticker := time.NewTicker(h.wheel.interval)
	defer ticker.Stop()
	var due []*connection
	for {
		select {
		case <-ctx.Done():
			return nil
		case now := <-ticker.C:
			due = h.wheel.advance(due[:0])
			for i, c := range due {
				c.sendPing(now)
				due[i] = nil
			}
		}
	}
}

// Clients returns how many clients are connected, those included that are being upgraded or closed.
func (h *Hub) Clients() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.connections)
}

// Close drains the hub: it accepts no more clients, sends each what is queued for it and then a close frame with 1012,
// in random order over up to half of the time that ctx has, and waits until all are gone. When ctx ends first, the
// rest is cut off and the error says how many that were. Close may be called twice, and before Run.
func (h *Hub) Close(ctx context.Context) error {
	h.mu.Lock()
	h.closed = true
	h.mu.Unlock()
	defer h.stop() // not before: replays go on until their clients are told to go
	gone := make(chan struct{})
	go func() {
		h.running.Wait()
		close(gone)
	}()
	h.drain(ctx, gone)
	select {
	case <-gone:
		return nil
	case <-ctx.Done():
	}
	h.stop()
	left := h.abortAll()
	select {
	case <-gone: // at once, but for a client that the caller's Admit still holds
	case <-time.After(abortGrace):
	}
	if left == 0 {
		return nil
	}
	return fmt.Errorf("close the hub: %d clients did not take their last frames in time", left)
}

const abortGrace = time.Second

// abortAll cuts off every client and returns how many that were.
func (h *Hub) abortAll() int {
	all := h.all()
	for _, c := range all {
		c.closeNow()
	}
	return len(all)
}

func (h *Hub) all() []*connection {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.AppendSeq(make([]*connection, 0, len(h.connections)), maps.Keys(h.connections))
}

// add takes a client in, unless the hub is closed. Every client that was added is removed once. One that comes back with
// a cursor gets no broadcasts yet: see replay.
func (h *Hub) add(c *connection, s *Subscription) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return false
	}
	h.connections[c] = struct{}{}
	h.nextClientSeq++
	c.seq = h.nextClientSeq
	h.running.Add(1)
	if c.replay == nil {
		h.index.Add(c, s)
	}
	return true
}

// remove forgets a client whose goroutines have ended.
func (h *Hub) remove(c *connection) {
	h.unsubscribe(c)
	h.mu.Lock()
	delete(h.connections, c)
	h.mu.Unlock()
	c.lease.Release()
	h.running.Done()
}

// unsubscribe stops broadcasts and pings to a client. It may be called twice.
func (h *Hub) unsubscribe(c *connection) {
	h.index.Remove(c)
	h.wheel.remove(c)
}
