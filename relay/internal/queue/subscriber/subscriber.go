// Package subscriber implements a Watermill subscriber on Redis Streams, with consumer groups and at-least-once
// delivery.
//
// It knows nothing about sinks, partitions or notifications; see package queue.
package subscriber

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"

	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
)

// ErrClosed is returned by a Subscriber that has been closed.
var ErrClosed = errors.New("the subscriber is closed")

// metadataCursor is the metadata key of the entry ID. It is not a field of the entry.
const metadataCursor = "cursor"

// metadataStored is the metadata key that [MarkStored] sets.
const metadataStored = "stored"

// MarkStored records that the handler has stored the content of a message elsewhere in Redis. Call it before the ack. If the ack
// fails, the message is delivered again, because a failover may have lost what was stored and kept the message.
func MarkStored(m *message.Message) { m.Metadata[metadataStored] = "true" }

// Config configures a [Subscriber]. Commands, Readers, Consumer and Group are required.
type Config struct {
	// Commands runs all commands that do not block. Its MaxRetries should be -1.
	Commands redis.UniversalClient
	// Readers has the options for the connections of blocking reads: one for each slot, in addition to its pool. The
	// Subscriber closes neither client.
	Readers redis.UniversalClient
	// Group is the consumer group, the same on every node.
	Group string
	// Consumer is the name of this node in the group. It must be stable over restarts, because Redis never deletes
	// consumers. No two running Subscribers may share it.
	Consumer string

	// Streams returns the streams of a topic. By default, the topic is the name of its only stream. Topics must not
	// share a stream.
	Streams func(topic string) []string
	// Slot groups streams: one command reads all streams with the same number. In a Redis Cluster they must have the
	// same hash slot. By default, all streams are in one group.
	Slot func(stream string) int
	// MaxInFlight returns the maximum number of messages of a topic in flight; 1 keeps the order of the queue. Each
	// Subscribe calls it. The default is 1.
	MaxInFlight func(topic string) int
	// Key returns the ordering key of a message. Messages of a topic with the same key are in flight one at a time, in
	// order. There is no order for an empty key, and none if Key is nil. Key must not retain the message.
	Key func(topic string, m *message.Message) string

	// ClaimIdle is the idle time after which an entry of another consumer is claimed. Entries in memory are kept alive
	// every third of it. The default is 15 s.
	ClaimIdle time.Duration
	// ClaimInterval is the time between two searches for idle entries. The default is a third of ClaimIdle.
	ClaimInterval time.Duration
	// NackDelay is the time before a nacked message is delivered again. The default is 250 ms.
	NackDelay time.Duration
	// HandlerGrace is the time for which an ended subscription waits for handlers. It then cancels the contexts of
	// their messages and releases the messages. The default is 0.
	HandlerGrace time.Duration
	// MaxUnflushedAcks returns the maximum number of acks of a topic that are not stored before its workers take no
	// more messages. After a crash, these messages are delivered again, in addition to the messages in flight. Acks
	// are collected for at most a millisecond, and only while workers are busy. Each Subscribe calls it. The default
	// is 1024.
	MaxUnflushedAcks func(topic string) int
	// KeepAcked keeps acked entries in the stream, for streams with several groups.
	KeepAcked bool

	// Log may be nil.
	Log *slog.Logger
	// OnGap is called if a stream or its group was missing, so entries may be lost. It must not block.
	OnGap func(stream string)
	// OnMalformed stores an entry without ID or data elsewhere. If it returns nil, the entry is removed, otherwise it
	// is tried again after ClaimIdle. By default, such entries are logged and removed.
	OnMalformed func(ctx context.Context, stream, id string, fields map[string]any) error
}

const (
	readCount       = 128  // maximum number of entries of one stream in one read
	minReadCount    = 8    // also with many streams
	readBudget      = 4096 // maximum number of entries of all streams in one read, unless they are very many
	topicBufferSize = 256  // number of entries in memory, at least one per worker, above which a topic is not read
	// topicBufferBytes is the size of the entries that wait in memory above which a topic is not read. One read may double it.
	topicBufferBytes = 4 << 20
	// While the waiting entries of all topics are larger than sharedBufferBytes, only topics without waiting entries are read,
	// and at most smallReadBytes of each stream.
	sharedBufferBytes = 64 << 20
	smallReadBytes    = 256 << 10
	// unknownEntryBytes is the assumed size of the entries of a stream before the first read.
	unknownEntryBytes = topicBufferBytes / minReadCount
	maxUnflushed      = 16 * topicBufferSize

	readBlock      = redisconn.MaxBlock
	backlogPause   = 5 * time.Millisecond  // between two reads of idle or full streams while others have a backlog
	fallbackBlock  = 20 * time.Millisecond // if a blocked read cannot be interrupted
	flushTimeout   = 5 * time.Second       // of one flush, and of the last one in Close
	wrongTypeRetry = 30 * time.Second
	// outOfMemoryRetry is the time after which a group is created again that a full Redis rejected.
	outOfMemoryRetry = time.Second

	defaultClaimIdle = 15 * time.Second
	defaultNackDelay = 250 * time.Millisecond
)

func (c *Config) setDefaults() {
	if c.Streams == nil {
		c.Streams = func(topic string) []string { return []string{topic} }
	}
	if c.Slot == nil {
		c.Slot = func(string) int { return 0 }
	}
	if c.MaxInFlight == nil {
		c.MaxInFlight = func(string) int { return 1 }
	}
	if c.ClaimIdle <= 0 {
		c.ClaimIdle = defaultClaimIdle
	}
	if c.ClaimInterval <= 0 {
		c.ClaimInterval = c.ClaimIdle / 3
	}
	if c.NackDelay <= 0 {
		c.NackDelay = defaultNackDelay
	}
	if c.MaxUnflushedAcks == nil {
		c.MaxUnflushedAcks = func(string) int { return 4 * topicBufferSize }
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
}

// Subscriber is a Watermill subscriber on Redis Streams. It delivers at least once. Its methods may be called
// concurrently.
//
// One goroutine reads all topics of a slot with one command. At most MaxInFlight messages of a topic are in flight,
// and at most max(MaxInFlight, 256) + 256 more are in memory. An acked entry is deleted from its stream. A topic has
// one active subscription. A later one starts when the earlier one has ended, which keeps the order.
//
// No subscription ends because Redis is unreachable, loading, flushed or restarted.
type Subscriber struct {
	cfg    Config
	ctx    context.Context // ends when Close has released all messages
	cancel context.CancelFunc

	acker        *acker
	reclaimer    *reclaimer
	waitingBytes atomic.Int64   // of all topics
	wg           sync.WaitGroup // of readers and reclaimer

	mu      sync.Mutex
	topics  map[string]*topicQueue
	streams map[string]*streamState
	readers map[int]*slotReader // by slot
	closed  bool
	done    chan struct{} // closed when Close has finished
	err     error         // of Close, valid after done
}

var _ message.Subscriber = (*Subscriber)(nil)

// New returns a Subscriber that reads nothing before the first Subscribe.
func New(cfg Config) (*Subscriber, error) {
	if cfg.Commands == nil || cfg.Readers == nil {
		return nil, errors.New("create subscriber: clients for commands and for blocking reads are required")
	}
	for _, c := range []redis.UniversalClient{cfg.Commands, cfg.Readers} {
		switch c.(type) {
		case *redis.Client, *redis.ClusterClient:
		default:
			return nil, fmt.Errorf("create subscriber: clients of type %T are not supported", c)
		}
	}
	if cfg.Group == "" || cfg.Consumer == "" {
		return nil, errors.New("create subscriber: the names of group and consumer are required")
	}
	cfg.setDefaults()
	s := &Subscriber{
		cfg:     cfg,
		topics:  make(map[string]*topicQueue),
		streams: make(map[string]*streamState),
		readers: make(map[int]*slotReader),
		done:    make(chan struct{}),
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.acker = newAcker(s)
	s.reclaimer = newReclaimer(s)
	return s, nil
}

// Subscribe returns the messages of a topic, starting with the messages that this consumer received before and did
// not ack. It does not wait for Redis. The channel is closed after ctx ends or Close is called. Messages that are
// neither acked nor nacked by then are released after HandlerGrace.
func (s *Subscriber) Subscribe(ctx context.Context, topicName string) (<-chan *message.Message, error) {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil, ErrClosed
	}
	t, err := s.topicLocked(topicName)
	if err != nil {
		s.mu.Unlock()
		return nil, err
	}
	sub := t.subscribe(ctx)
	for _, st := range t.streams {
		s.startReadingLocked(st)
	}
	s.mu.Unlock()

	stop := context.AfterFunc(ctx, sub.stop)
	context.AfterFunc(sub.ctx, func() { stop() })
	return sub.out, nil
}

// Abort ends all subscriptions and the contexts of their messages at once, without HandlerGrace. It does not wait.
func (s *Subscriber) Abort() {
	s.mu.Lock()
	subs := s.subscriptionsLocked()
	s.mu.Unlock()
	for _, sub := range subs {
		sub.stop()
		sub.cancel()
	}
}

func (s *Subscriber) subscriptionsLocked() []*subscription {
	var subs []*subscription
	for _, t := range s.topics {
		subs = append(subs, t.allSubscriptions()...)
	}
	return subs
}

// Close ends all subscriptions, releases the messages that are not acked, and returns when the acks are stored in
// Redis, at the latest five seconds after HandlerGrace. It may be called twice.
func (s *Subscriber) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		<-s.done
		return s.err
	}
	s.closed = true
	subs := s.subscriptionsLocked()
	readers := slices.Collect(maps.Values(s.readers))
	s.mu.Unlock()

	for _, sub := range subs {
		sub.stop()
	}
	for _, sub := range subs {
		<-sub.done
	}
	// Stop the readers before the acker, which also releases the entries of their last read.
	s.cancel()
	for _, r := range readers {
		r.wakeUp()
	}
	s.wg.Wait()
	s.err = s.acker.close()
	s.releaseUnread()
	close(s.done)
	return s.err
}

// releasedIdleTime is the idle time of a released entry. It makes the next XAUTOCLAIM of any node claim the entry.
const releasedIdleTime = 24 * time.Hour

// releaseCommand returns the command that releases entries of a stream.
func (s *Subscriber) releaseCommand(stream string, ids []*string) []any {
	args := appendIDs([]any{"XCLAIM", stream, s.cfg.Group, s.cfg.Consumer, 0}, ids)
	return append(args, "IDLE", releasedIdleTime.Milliseconds(), "JUSTID")
}

// releaseUnread releases entries that Redis assigned to this consumer in its last reads, but that are not in memory. If
// Redis does not respond, another node claims them after ClaimIdle.
func (s *Subscriber) releaseUnread() {
	ctx, cancel := context.WithTimeout(context.Background(), flushTimeout)
	defer cancel()
	s.mu.Lock()
	streams := slices.Collect(maps.Keys(s.streams))
	s.mu.Unlock()
	pending := make([]*redis.XPendingExtCmd, len(streams))
	_, _ = s.cfg.Commands.Pipelined(ctx, func(pipe redis.Pipeliner) error { // each command has its error
		for i, stream := range streams {
			pending[i] = pipe.XPendingExt(ctx, &redis.XPendingExtArgs{
				Stream: stream, Group: s.cfg.Group, Consumer: s.cfg.Consumer, Start: "-", End: "+", Count: maxUnflushed,
			})
		}
		return nil
	})
	for i, stream := range streams {
		var ids []string
		for _, p := range pending[i].Val() {
			if p.Idle < releasedIdleTime/2 {
				ids = append(ids, p.ID)
			}
		}
		if len(ids) == 0 {
			continue
		}
		if err := s.cfg.Commands.Do(ctx, s.releaseCommand(stream, toPointers(ids))...).Err(); err != nil {
			s.cfg.Log.Warn("releasing queue entries failed, another node claims them later",
				"redis_key", stream, "error", err)
		}
	}
}

func (s *Subscriber) topicLocked(name string) (*topicQueue, error) {
	if t, ok := s.topics[name]; ok {
		return t, nil
	}
	t := newTopicQueue(s, name)
	streams := s.cfg.Streams(name)
	if len(streams) == 0 {
		return nil, fmt.Errorf("subscribe to topic %q: it has no stream", name)
	}
	for _, stream := range streams {
		if other, ok := s.streams[stream]; ok {
			return nil, fmt.Errorf("subscribe to topic %q: topic %q uses stream %s", name, other.topic.name, stream)
		}
	}
	for _, stream := range streams {
		st := newStreamState(stream, t)
		s.streams[stream] = st
		t.streams = append(t.streams, st)
	}
	s.topics[name] = t
	return t, nil
}

// startReadingLocked adds a stream to the reader of its slot, and starts that reader if it is new.
func (s *Subscriber) startReadingLocked(st *streamState) {
	slot := s.cfg.Slot(st.name)
	r, ok := s.readers[slot]
	if !ok {
		r = newSlotReader(s)
		s.readers[slot] = r
		s.wg.Add(2)
		go r.run()
		go r.unblockLoop()
		if len(s.readers) == 1 {
			s.wg.Add(1)
			go s.reclaimer.run()
		}
	}
	st.attachReader(r)
}

// stopReading removes the streams of a topic from their readers if it has no subscription left.
func (s *Subscriber) stopReading(t *topicQueue) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !t.isIdle() {
		return
	}
	for _, st := range t.streams {
		st.detachReader()
	}
}

// isOverBudget reports whether too many bytes wait in memory.
func (s *Subscriber) isOverBudget() bool { return s.waitingBytes.Load() > sharedBufferBytes }

// maxReadBytes returns the size of the entries of a stream after which a read is truncated. The streams of a topic share it.
func (s *Subscriber) maxReadBytes(st *streamState) int {
	if s.isOverBudget() {
		return smallReadBytes / max(len(st.topic.streams), 1)
	}
	return topicBufferBytes / max(len(st.topic.streams), 1)
}

// activeStreams returns the streams that are being read.
func (s *Subscriber) activeStreams() []*streamState {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := make([]*streamState, 0, len(s.streams))
	for _, st := range s.streams {
		if st.reader.Load() != nil {
			list = append(list, st)
		}
	}
	return list
}
