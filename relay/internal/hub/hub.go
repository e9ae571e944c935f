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

	"github.com/gorilla/websocket"

	"github.com/hubrelay/hubrelay/internal/streamid"
	"github.com/hubrelay/hubrelay/relay"
)

// Options are the settings of a [Hub]. Zero values take the defaults.
type Options struct {
	// QueueBytes is the maximum number of bytes that wait for one client. Beyond it the client is closed as too slow (1
	// MiB). An empty queue always accepts one burst of a Broadcast (up to 128 KiB, or one larger notification).
	QueueBytes int
	// PingInterval is the time between two pings to a client (25 s).
	PingInterval time.Duration
	// PongTimeout is the maximum silence of a client after a ping (50 s). It is checked once per PingInterval.
	PongTimeout time.Duration
	// WriteTimeout is the maximum time for which a socket may accept nothing while frames are queued (10 s).
	WriteTimeout time.Duration
	// CloseTimeout is the maximum time for a client to accept a close frame and to answer it (5 s).
	CloseTimeout time.Duration
	// DrainPace is the time between two closed clients of a drain (5 ms), so the next node receives them one after the
	// other. It is shorter if Close has little time.
	DrainPace time.Duration
	// Limits bound how many clients there may be; the zero value bounds nothing.
	Limits Limits
	// Partitions is the number of partitions of the log (1). Partition returns the partition of a hub. It may be nil if
	// there is one.
	Partitions int
	Partition  func(hub string) int
	// HistoryBytes limits the memory of recent broadcasts for clients with a cursor (16 MiB). It covers all partitions
	// and formats, with at least 1 MiB per partition. Account pipelines over several partitions use as much again, and
	// chunks from History half of it.
	HistoryBytes int
	// History is the log, for entries that are not in memory. nil has none.
	History History
	// Compression is for websockets; the zero value compresses nothing.
	Compression Compression
	// Log receives what happens to clients; nil discards.
	Log *slog.Logger
	// Observer counts; nil counts nothing.
	Observer Observer
}

// Observer counts what the hub does, for metrics. Its methods are called concurrently, often, and from the path of a
// broadcast: they must not block.
type Observer interface {
	// Connected is called once for each upgraded client. compressed reports whether it accepts compressed messages.
	Connected(compressed bool)
	// Disconnected is called once for each Connected.
	Disconnected(why CloseReason, compressed bool)
	// Rejected is called for each client that found a limit reached, before it was connected.
	Rejected(Limit)
	// Queued counts frames given to clients, whether written at once or queued.
	Queued(frames, bytes int)
	// Compressed counts compressed frames and the saved bytes.
	Compressed(frames, saved int)
	// CompressionTime is called for each notification that was compressed, once for all clients, with the duration.
	CompressionTime(took time.Duration)
	// CompressionSkipped is called for each that was not since the time for it was used up.
	CompressionSkipped()
	// ReplayStarted is called for each client with a cursor, and ReplayEnded once when it has caught up or left.
	ReplayStarted()
	ReplayEnded(caughtUp bool)
	// Replayed counts notifications given to clients that come back.
	Replayed(from ReplaySource, frames int)
	// Resynced counts clients that received a resync.
	Resynced(cause ResyncCause, clients int)
}

// ReplaySource is the source of a replayed notification.
type ReplaySource string

// The sources of replays.
const (
	FromMemory ReplaySource = "memory" // the recent history that this node keeps
	FromLog    ReplaySource = "log"    // what was read of the log, for this client or another
)

// ResyncCause is the reason of a resync.
type ResyncCause string

// The causes of a resync.
const (
	ResyncCursor ResyncCause = "cursor" // what followed its cursor is not in the log
	ResyncLog    ResyncCause = "log"    // the log has lost something before this node read it
	ResyncSource ResyncCause = "source" // something of an upstream is missing in the log
)

// CloseReason is the reason of a closed connection.
type CloseReason string

// The endings of a connection.
const (
	ClosedByClient      CloseReason = "client"   // it closed, or its connection broke
	ClosedProtocolError CloseReason = "protocol" // it broke RFC 6455, sent too much, or too large a message
	ClosedSlowConsumer  CloseReason = "slow"     // it read too slowly
	ClosedPingTimeout   CloseReason = "silent"   // it answered no ping
	ClosedKeyInvalid    CloseReason = "expired"  // its key expired or changed
	ClosedKeyRemoved    CloseReason = "removed"  // its key was removed
	ClosedDrain         CloseReason = "drain"    // the hub was closed
)

// History reads the log. Its method is called concurrently, a bounded number of times at once; it may block, but not
// for ever.
type History interface {
	// ReadFrom returns up to count notifications of a partition after a position, in order and each with its cursor. If
	// lost is true, some entries after the position are missing, and list starts after from. Otherwise from is the same
	// position with the hash of its entry.
	ReadFrom(ctx context.Context, partition int, after streamid.Position, count int) (from streamid.Position, lost bool,
		list []relay.Notification, err error)
}

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
	upgrader        websocket.Upgrader
	index           *subscriptionIndex
	wheel           *pingWheel
	limits          *connectionLimiter
	fanouts         sync.Pool // *fanout
	buffers         sync.Pool // *buffer
	blockingBuffers sync.Pool // *record
	// feeds are the orders of the partitions, and merged is that of all together.
	feeds      []*feed
	mergedFeed *feed
	history    *historyCache
	deflater   *compressionBudget // nil if compression is disabled
	// replaySlots limit the number and the work of concurrent replays, so they do not delay broadcasts.
	replaySlots chan *replaySlot
	// ctx ends when the hub is closed.
	ctx  context.Context
	stop context.CancelFunc

	mu            sync.Mutex
	closed        bool
	clients       map[*client]struct{}
	nextClientSeq uint64 // how many have been added
	// running counts the clients and their writing goroutines.
	running sync.WaitGroup
}

// minHistoryBytes is the minimum history of each partition, if the total limit allows it.
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
		upgrader:        newUpgrader(),
		index:           newIndex(),
		wheel:           newPingWheel(o.PingInterval),
		limits:          newPlaces(o.Limits),
		fanouts:         sync.Pool{New: func() any { return newFanout() }},
		buffers:         sync.Pool{New: func() any { return new(writeBuffer) }},
		blockingBuffers: sync.Pool{New: func() any { return new(blockingBuffer) }},
		clients:         make(map[*client]struct{}),
		history:         newHistory(o.History, read),
		deflater:        newDeflater(o.Compression, o.Observer),
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
	var due []*client
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
	return len(h.clients)
}

// Close drains the hub. It accepts no more clients, and sends each client its queued frames and then a close frame with
// 1012, in random order over up to half of the time of ctx. It returns when all have left. When ctx ends first, the
// remaining ones are cut off, and the error contains their number. Close may be called twice, and before Run.
func (h *Hub) Close(ctx context.Context) error {
	h.mu.Lock()
	h.closed = true
	h.mu.Unlock()
	defer h.stop() // last, because replays continue until their clients are closed
	gone := make(chan struct{})
	go func() {
		h.running.Wait()
		close(gone)
	}()
	h.drainClients(ctx, gone)
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
	all := h.allClients()
	for _, c := range all {
		c.closeNow()
	}
	return len(all)
}

func (h *Hub) allClients() []*client {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.AppendSeq(make([]*client, 0, len(h.clients)), maps.Keys(h.clients))
}

// add adds a client, unless the hub is closed. Every added client is removed once. A client with a cursor receives no
// broadcasts until its replay joins them.
func (h *Hub) add(c *client, s *Subscription) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return false
	}
	h.clients[c] = struct{}{}
	h.nextClientSeq++
	c.seq = h.nextClientSeq
	h.running.Add(1)
	if c.replay == nil {
		h.index.addClient(c, s)
	}
	return true
}

// remove removes a client whose goroutines have ended.
func (h *Hub) remove(c *client) {
	h.unsubscribe(c)
	h.mu.Lock()
	delete(h.clients, c)
	h.mu.Unlock()
	c.slot.Release()
	h.running.Done()
}

// unsubscribe stops broadcasts and pings to a client. It may be called twice.
func (h *Hub) unsubscribe(c *client) {
	h.index.removeClient(c)
	h.wheel.remove(c)
}
