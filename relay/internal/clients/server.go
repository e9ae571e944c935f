// Package clients sends notifications to the websocket and server-sent event (SSE) clients of this node.
//
// It keeps an index of subscriptions, encodes each frame once, and sends the same bytes to every client. A client never
// delays another: what its socket does not accept at once waits in a bounded write queue, and a client whose queue is
// full is closed.
//
// Callers decide who may connect: the server checks the handshake of RFC 6455 and calls back for the rest. It knows no
// keys, tokens, configuration or Redis, and never imports sinks. Encoding and parsing of frames belong to clients/frame,
// the handshake and system calls to clients/transport, and reads of the log to clients/logcache.
//
// # Broadcast
//
// [Server.Broadcast] finds the clients in the index (by hub and account, and by topic if there are many patterns) and
// writes to each idle socket itself, without blocking: one system call and no goroutine. What the socket does not
// accept goes to the client's write queue. A goroutine then writes until that queue is empty, with few large writes.
// Pings, pongs and close frames use the same queue, so they are sent between other frames.
//
// # Replay
//
// A cursor holds positions in the log. A client with a cursor receives the entries after it in chunks, from the log and
// from the recent history of its feed. It joins the broadcasts under the lock of the feed, at the position that
// its replay has reached.
package clients

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

	"github.com/hubrelay/hubrelay/internal/await"
	"github.com/hubrelay/hubrelay/internal/logsample"
	"github.com/hubrelay/hubrelay/internal/streamid"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/clients/frame"
	"github.com/hubrelay/hubrelay/relay/internal/clients/logcache"
	"github.com/hubrelay/hubrelay/relay/internal/clients/transport"
)

// Options are the settings of a [Server]. Zero values use the defaults in parentheses.
type Options struct {
	// QueueBytes is the maximum size of a client's write queue (1 MiB). A larger queue closes the client as a slow
	// consumer. An empty queue always accepts one burst of a Broadcast: up to 128 KiB, or one larger notification.
	QueueBytes int
	// PingInterval is the time between two pings to a client (25 s).
	PingInterval time.Duration
	// PongTimeout is the maximum time without data after a ping (50 s). It is checked once per PingInterval.
	PongTimeout time.Duration
	// WriteTimeout is the maximum time that a socket may accept nothing while frames are queued (10 s).
	WriteTimeout time.Duration
	// CloseTimeout is the maximum time until a client accepts a close frame and replies to it (5 s).
	CloseTimeout time.Duration
	// DrainPace is the time between two close frames while the server drains (5 ms), to spread reconnects. It is shorter
	// if Close has less time.
	DrainPace time.Duration
	// Limits are the maximum numbers of clients. The zero value sets no limits.
	Limits Limits
	// Partitions is the number of partitions of the log (1). Partition returns the partition of a hub, and may be nil
	// if there is only one.
	Partitions int
	Partition  func(hub string) int
	// CursorKey encrypts cursors. It must be the same on all nodes and after restarts.
	CursorKey streamid.CursorKey
	// CoalesceDelay combines the batches of this time into one write per client. 0 broadcasts every batch at once.
	CoalesceDelay time.Duration
	// HistoryBytes limits the memory for recent broadcasts of all partitions, which serve replays (16 MiB). Each
	// partition gets at least 1 MiB of it. Account streams over several partitions use the same amount again, and
	// segments read from History half of it. Frames count in every encoding.
	HistoryBytes int
	// History is the log for older entries. Without it, replays get only recent broadcasts.
	History logcache.Log
	// PositionsBefore returns the position of the last entry before a time, in each of count partitions from first on. It
	// is called concurrently. Without it, a stream cannot start at a time.
	PositionsBefore func(ctx context.Context, first, count int, t time.Time) ([]streamid.Position, error)
	// Compression is for websockets. The zero value disables it.
	Compression Compression
	// OnBroadcast is called for each notification with the number of clients to which it was just sent, if that is not 0.
	// Replays do not count. It is called under locks, so it must be fast and must not block. It may be nil.
	OnBroadcast func(n *relay.Notification, clients int)
	// Log receives client events. Nil discards them.
	Log *slog.Logger
	// Observer receives counts. Nil discards them.
	Observer Observer
}

// Compression is the configuration of permessage-deflate.
type Compression = frame.Compression

// Observer counts what the server does, for metrics. Its methods are called concurrently and often, also during a
// broadcast. They must not block.
type Observer interface {
	// Connected is called once for each upgraded client. compressed reports whether it accepts compressed messages.
	Connected(compressed bool)
	// Disconnected is called once for each Connected.
	Disconnected(why CloseReason, compressed bool)
	// Rejected is called for each client that exceeds a limit.
	Rejected(Limit)
	// Queued counts frames for clients, whether written at once or queued.
	Queued(frames, bytes int)
	// Compressed counts the compressed frames among them, and the bytes saved.
	Compressed(frames, saved int)
	// CompressionTime is called once for each compressed notification.
	CompressionTime(took time.Duration)
	// CompressionSkipped is called for each notification sent plain because the time budget was used up.
	CompressionSkipped()
	// ReplayStarted is called for each client with a cursor. ReplayEnded is called once for each; caughtUp is false
	// if the client left first.
	ReplayStarted()
	ReplayEnded(caughtUp bool)
	// Replayed counts notifications sent by replays.
	Replayed(from ReplaySource, frames int)
	// Resynced counts clients that received a resync.
	Resynced(reason ResyncReason, clients int)
}

// ReplaySource is the origin of a replayed notification.
type ReplaySource string

// The sources of a replay.
const (
	FromMemory ReplaySource = "memory" // the recent broadcasts of this node
	FromLog    ReplaySource = "log"    // the log
)

// ResyncReason is the reason for a resync.
type ResyncReason string

// The reasons of a resync.
const (
	ResyncCursor ResyncReason = "cursor" // entries after its cursor are no longer in the log
	ResyncLog    ResyncReason = "log"    // the log lost entries before this node read them
	ResyncSource ResyncReason = "source" // a source reported lost entries
)

// CloseReason is the reason why a connection ended.
type CloseReason string

// The reasons why a connection ends.
const (
	ClosedByClient      CloseReason = "client"   // it closed, or its connection broke
	ClosedProtocolError CloseReason = "protocol" // it violated RFC 6455 or sent too much
	ClosedSlowConsumer  CloseReason = "slow"     // it read too slowly
	ClosedPingTimeout   CloseReason = "silent"   // it did not reply to a ping
	ClosedKeyInvalid    CloseReason = "expired"  // its key expired or changed
	ClosedKeyRemoved    CloseReason = "removed"  // its key was removed
	ClosedTokenEnded    CloseReason = "token"    // its token has another stream, was revoked, or is too old
	ClosedDrain         CloseReason = "drain"    // the server was closed
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
func (noObserver) Resynced(ResyncReason, int)     {}

// Server serves the clients of one node. All methods may be called concurrently.
type Server struct {
	opts            Options
	startedAt       time.Time
	upgrader        *transport.Upgrader
	index           *subscriptionIndex
	wheel           *pingWheel
	limits          *connectionLimiter
	broadcasts      sync.Pool // *broadcast
	buffers         sync.Pool // *writeBuffer
	blockingBuffers sync.Pool // *blockingBuffer
	// feeds are the feeds of the partitions. mergedFeed contains all partitions.
	feeds      []*feed
	mergedFeed *feed
	coalescers []*coalescer // one per partition
	logCache   *logcache.Cache
	deflater   *frame.Deflater // nil if compression is disabled
	cursors    *streamid.Cursors
	// replaySlots limit concurrent replays and their share of processor time, so they do not delay broadcasts.
	replaySlots   *replaySlots
	disconnectLog *logsample.Limiter
	// ctx is canceled when the server is closed.
	ctx  context.Context
	stop context.CancelFunc

	mu            sync.Mutex
	closed        bool
	connections   map[*connection]struct{}
	nextClientSeq uint64 // of the newest client
	// running counts clients and their writer goroutines.
	running sync.WaitGroup
}

// maxDisconnectLines is the maximum number of disconnects per second that are logged at level info.
const maxDisconnectLines = 10

// minHistoryBytes is the minimum history per partition, unless HistoryBytes is smaller.
const minHistoryBytes = 1 << 20

// New returns a server without clients. It starts nothing: call [Server.Run] to send pings.
func New(o Options) *Server {
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
	segmentBytes := o.HistoryBytes / 2
	if o.Compression.Enabled {
		segmentBytes -= segmentBytes / 3 // segments also hold compressed frames
	}
	s := &Server{
		opts:            o,
		startedAt:       time.Now(),
		upgrader:        transport.NewUpgrader(),
		index:           newIndex(),
		wheel:           newPingWheel(o.PingInterval),
		limits:          newConnectionLimiter(o.Limits),
		broadcasts:      sync.Pool{New: func() any { return newBroadcast() }},
		buffers:         sync.Pool{New: func() any { return new(writeBuffer) }},
		blockingBuffers: sync.Pool{New: func() any { return new(blockingBuffer) }},
		connections:     make(map[*connection]struct{}),
		logCache:        logcache.New(o.History, segmentBytes),
		deflater:        frame.NewDeflater(o.Compression, o.Observer),
		cursors:         streamid.NewCursors(o.CursorKey),
		replaySlots:     newReplaySlots(max(1, runtime.GOMAXPROCS(0)/2)),
		disconnectLog:   logsample.New(maxDisconnectLines, time.Second, nil),
	}
	s.ctx, s.stop = context.WithCancel(context.Background())
	each := min(max(o.HistoryBytes/o.Partitions, minHistoryBytes), o.HistoryBytes)
	for p := range o.Partitions {
		s.coalescers = append(s.coalescers, newCoalescer(o.CoalesceDelay, s.broadcastNow))
		s.feeds = append(s.feeds, newFeed(o.Partitions, p, 1, each, s.deflater, s.cursors))
	}
	s.mergedFeed = s.feeds[0]
	if o.Partitions > 1 {
		s.mergedFeed = newFeed(o.Partitions, 0, o.Partitions, o.HistoryBytes, s.deflater, s.cursors)
	}
	return s
}

// SetPosition sets the position at which the broadcasts of a partition start. Call it before the first broadcast and
// client.
func (s *Server) SetPosition(partition int, at streamid.Position) {
	for _, f := range []*feed{s.feeds[partition], s.mergedFeed} {
		f.mu.Lock()
		f.positions[partition-f.firstPartition], f.keptFrom[partition-f.firstPartition] = at, at
		f.mu.Unlock()
	}
}

// feedFor returns the feed of a subscription.
func (s *Server) feedFor(sub *Subscription) *feed {
	if sub.Hub == "" {
		return s.mergedFeed
	}
	return s.feeds[s.opts.Partition(sub.Hub)]
}

// Run sends pings, and closes clients that do not reply, until ctx ends. It returns nil.
func (s *Server) Run(ctx context.Context) error {
	ticker := time.NewTicker(s.wheel.interval)
	defer ticker.Stop()
	var due []*connection
	for {
		select {
		case <-ctx.Done():
			return nil
		case now := <-ticker.C:
			due = s.wheel.advance(due[:0])
			for i, c := range due {
				c.sendPing(now)
				due[i] = nil
			}
		}
	}
}

// Clients returns the number of clients, including clients that are being upgraded or closed.
func (s *Server) Clients() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.connections)
}

// Close drains the server. It stops accepting clients, sends each client its queued frames and a close frame with code
// 1012, in random order over up to half of the time until the deadline of ctx, and waits until all have left. When
// ctx ends first, Close disconnects the rest and returns an error with their number. It may be called twice, and
// before Run.
func (s *Server) Close(ctx context.Context) error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	defer s.stop() // replays continue until their clients receive the close frame
	gone := make(chan struct{})
	go func() {
		s.running.Wait()
		close(gone)
	}()
	s.drain(ctx, gone)
	if _, late := await.Value(ctx, gone); late == nil {
		return nil
	}
	s.stop()
	left := s.abortAll()
	select {
	case <-gone: // immediately, unless a client is still in Admit
	case <-time.After(abortGrace):
	}
	if left == 0 {
		return nil
	}
	return fmt.Errorf("close the streams: disconnected %d clients before they received all frames", left)
}

const abortGrace = time.Second

// abortAll disconnects all clients and returns their number.
func (s *Server) abortAll() int {
	all := s.allConnections()
	for _, c := range all {
		c.closeNow()
	}
	return len(all)
}

func (s *Server) allConnections() []*connection {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.AppendSeq(make([]*connection, 0, len(s.connections)), maps.Keys(s.connections))
}

// add adds a client unless the server is closed. remove must be called once for each. A client with a cursor receives no
// broadcasts until its replay is done.
func (s *Server) add(c *connection, sub *Subscription) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.connections[c] = struct{}{}
	s.nextClientSeq++
	c.seq = s.nextClientSeq
	s.running.Add(1)
	if c.replay == nil {
		s.index.Add(c, sub)
	}
	return true
}

// remove removes a client whose goroutines have ended.
func (s *Server) remove(c *connection) {
	s.unsubscribe(c)
	s.mu.Lock()
	delete(s.connections, c)
	s.mu.Unlock()
	c.lease.release()
	s.running.Done()
}

// unsubscribe stops broadcasts and pings to a client. It may be called twice.
func (s *Server) unsubscribe(c *connection) {
	s.index.Remove(c)
	s.wheel.remove(c)
}
