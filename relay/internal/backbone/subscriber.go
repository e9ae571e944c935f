package backbone

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"
)

// ErrClosed is returned by a Subscriber or Publisher that has been closed.
var ErrClosed = errors.New("the subscriber or publisher is closed")

// The fields of a queue entry that are not metadata, and the metadata key that is not a field.
const (
	fieldID        = "id"
	fieldData      = "data"
	metadataCursor = "cursor"
)

// SubscriberConfig says what a [Subscriber] reads and how. Commands, Readers, Consumer and Group are required.
type SubscriberConfig struct {
	// Commands runs everything that does not block. Its MaxRetries should be -1.
	Commands redis.UniversalClient
	// Readers says how to connect for the blocking reads, one connection for each slot beside its pool. Neither client
	// is closed by the Subscriber.
	Readers redis.UniversalClient
	// Group is the consumer group, the same on every node.
	Group string
	// Consumer is this node's name in the group. It is stable over restarts, since Redis never forgets one, and no
	// two live Subscribers share it.
	Consumer string

	// Streams names the streams of a topic; nil means that the topic is the stream's name. No two topics share one.
	Streams func(topic string) []string
	// Slot groups streams: those with the same number are read by one command, so in a Redis Cluster they must hash to
	// one slot. Nil puts all in one group.
	Slot func(stream string) int
	// MaxInFlight is the number of messages of a topic in flight at once; 1 keeps strict order. Nil means 1. It is asked at
	// each Subscribe.
	MaxInFlight func(topic string) int
	// Key is the ordering key: messages of a topic with the same key are in flight one at a time, in order. Nil, or an
	// empty key, means that a message may go beside any other. It must not keep the message.
	Key func(topic string, m *message.Message) string

	// ClaimIdle is how long an entry may lie with a consumer that gives no sign of life before another takes it over;
	// default 15s. Entries in memory show life every third of it.
	ClaimIdle time.Duration
	// ClaimInterval is the pause between two looks for such entries; default a third of ClaimIdle.
	ClaimInterval time.Duration
	// NackDelay is the pause before a nacked message comes again; default 250ms.
	NackDelay time.Duration
	// HandlerGrace is how long an ended subscription waits for messages in handlers' hands before it cancels their contexts
	// and gives them back; default none.
	HandlerGrace time.Duration
	// MaxUnflushedAcks is how many acks of a topic may be on their way to Redis before its lanes take no further message: after
	// a kill, these and what is in the lanes come again. Acks are gathered for a millisecond at most, and only while
	// lanes have something to do. Nil means 1024. It is asked at each Subscribe.
	MaxUnflushedAcks func(topic string) int
	// KeepAcked leaves acked entries in the stream, for streams that several groups read.
	KeepAcked bool

	// Log is never nil after NewSubscriber.
	Log *slog.Logger
	// OnGap is told that a stream or its group had vanished, so that entries may be missing. It must not block.
	OnGap func(stream string)
	// OnMalformed stores an entry without id or data elsewhere; after nil the entry is removed, after an error it
	// is tried again when ClaimIdle has passed. Nil removes such entries with a log line.
	OnMalformed func(ctx context.Context, stream, id string, fields map[string]any) error
}

const (
	readCount       = 128  // entries of one stream in one read
	topicBufferSize = 256  // entries of a topic in memory, or as many as it has lanes, beyond which it is not read
	readBudget      = 4096 // entries of all streams in one read
	readBlock       = MaxBlock
	backlogPause    = 5 * time.Millisecond // between two looks at what is idle, or full, beside a backlog
	fallbackBlock   = 20 * time.Millisecond
	flushTimeout    = 5 * time.Second // of one flush, and of the last one in Close
	wrongTypeRetry  = 30 * time.Second
	maxUnflushed    = 16 * topicBufferSize
)

func (c *SubscriberConfig) setDefaults() {
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
		c.ClaimIdle = 15 * time.Second
	}
	if c.ClaimInterval <= 0 {
		c.ClaimInterval = c.ClaimIdle / 3
	}
	if c.NackDelay <= 0 {
		c.NackDelay = 250 * time.Millisecond
	}
	if c.MaxUnflushedAcks == nil {
		c.MaxUnflushedAcks = func(string) int { return 4 * topicBufferSize }
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
}

// Subscriber is a Watermill Subscriber on Redis Streams, at least once.
//
// All topics of a slot are read by one goroutine with one command. At most Lanes messages of a topic are in flight, and
// at most max(Lanes, 256) + 256 more are held in memory. An acked entry is deleted from its stream. A topic has one
// active subscription: a later one of the same topic starts when the former has ended, so that order holds.
//
// Redis being away, loading, flushed or restarted ends no subscription. Its methods may be called concurrently.
type Subscriber struct {
	cfg    SubscriberConfig
	ctx    context.Context // ends when Close has given everything back
	cancel context.CancelFunc

	acker     *acker
	reclaimer *reclaimer
	wg        sync.WaitGroup // readers, wakers, keeper

	mu      sync.Mutex
	topics  map[string]*topicQueue
	sources map[string]*streamState // by stream
	readers map[int]*slotReader     // by slot
	closed  bool
	done    chan struct{} // closed when Close is through
	err     error         // of Close, valid after done
}

var (
	_ message.Subscriber           = (*Subscriber)(nil)
	_ message.SubscribeInitializer = (*Subscriber)(nil)
)

// NewSubscriber returns a Subscriber that reads nothing until the first Subscribe.
func NewSubscriber(cfg SubscriberConfig) (*Subscriber, error) {
	if cfg.Commands == nil || cfg.Readers == nil {
		return nil, errors.New("a subscriber needs a client for commands and one for blocking reads")
	}
	for _, c := range []redis.UniversalClient{cfg.Commands, cfg.Readers} {
		switch c.(type) {
		case *redis.Client, *redis.ClusterClient:
		default:
			return nil, fmt.Errorf("a subscriber cannot read through a %T", c)
		}
	}
	if cfg.Group == "" || cfg.Consumer == "" {
		return nil, errors.New("a subscriber needs the names of its group and of its consumer")
	}
	cfg.setDefaults()
	s := &Subscriber{
		cfg:     cfg,
		topics:  make(map[string]*topicQueue),
		sources: make(map[string]*streamState),
		readers: make(map[int]*slotReader),
		done:    make(chan struct{}),
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.acker = newSettler(s)
	s.reclaimer = newReclaimer(s)
	return s, nil
}

// Subscribe returns the messages of a topic, beginning with those that this consumer had not acked before. It does not
// wait for Redis. The channel is closed after ctx ends or Close is called; messages that are then neither acked nor
// nacked are given back after the Grace.
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
	for _, src := range t.sources {
		s.startReadingLocked(src)
	}
	s.mu.Unlock()

	stop := context.AfterFunc(ctx, sub.stop)
	context.AfterFunc(sub.ctx, func() { stop() })
	return sub.out, nil
}

// SubscribeInitialize creates the topic's streams and groups. Subscribe does so too, as soon as Redis answers.
func (s *Subscriber) SubscribeInitialize(topicName string) error {
	for _, stream := range s.cfg.Streams(topicName) {
		err := s.cfg.Commands.XGroupCreateMkStream(s.ctx, stream, s.cfg.Group, "0").Err()
		if err != nil && !redis.HasErrorPrefix(err, "BUSYGROUP") {
			return fmt.Errorf("create the group of stream %s: %w", stream, err)
		}
	}
	return nil
}

// Abort ends all subscriptions and the contexts of their messages, without the Grace. It does not wait.
func (s *Subscriber) Abort() {
	s.mu.Lock()
	var subs []*subscription
	for _, t := range s.topics {
		subs = append(subs, t.subscriptions()...)
	}
	s.mu.Unlock()
	for _, sub := range subs {
		sub.stop()
		sub.cancel()
	}
}

// Close ends all subscriptions, gives back what was not acked, and returns when the acks are stored in Redis or after
// the Grace and five seconds. It may be called twice.
func (s *Subscriber) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		<-s.done
		return s.err
	}
	s.closed = true
	var subs []*subscription
	for _, t := range s.topics {
		subs = append(subs, t.subscriptions()...)
	}
	readers := make([]*slotReader, 0, len(s.readers))
	for _, r := range s.readers {
		readers = append(readers, r)
	}
	s.mu.Unlock()

	for _, sub := range subs {
		sub.stop()
	}
	for _, sub := range subs {
		<-sub.done
	}
	// Readers stop first: what their last read brings is given back with the rest.
	s.cancel()
	for _, r := range readers {
		r.wake()
	}
	s.wg.Wait()
	s.err = s.acker.close()
	s.releaseUnread()
	close(s.done)
	return s.err
}

// releasedIdleTime is the idle time of an entry that was given back, by which it is due for the next XAUTOCLAIM of any node.
const releasedIdleTime = 24 * time.Hour

// releaseCommand is the command that gives entries of a stream back.
func (s *Subscriber) releaseCommand(stream string, ids []*string) []any {
	args := appendIDs([]any{"XCLAIM", stream, s.cfg.Group, s.cfg.Consumer, 0}, ids)
	return append(args, "IDLE", releasedIdleTime.Milliseconds(), "JUSTID")
}

// releaseUnread gives back what the last reads brought between two give-backs, of which nobody here knows. Where Redis does
// not answer, another node takes it over a little later.
func (s *Subscriber) releaseUnread() {
	ctx, cancel := context.WithTimeout(context.Background(), flushTimeout)
	defer cancel()
	s.mu.Lock()
	streams := slices.Collect(maps.Keys(s.sources))
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
			s.cfg.Log.Warn("entries were not given back; another node takes them over in a while", "stream", stream, "error", err)
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
		return nil, fmt.Errorf("topic %q has no stream", name)
	}
	for _, stream := range streams {
		if other, ok := s.sources[stream]; ok {
			return nil, fmt.Errorf("topics %q and %q would share the stream %s", name, other.topic.name, stream)
		}
	}
	for _, stream := range streams {
		src := newStreamState(stream, t)
		s.sources[stream] = src
		t.sources = append(t.sources, src)
	}
	s.topics[name] = t
	return t, nil
}

// startReadingLocked lets the slot's reader read the source, starting the reader where it is the first.
func (s *Subscriber) startReadingLocked(src *streamState) {
	slot := s.cfg.Slot(src.stream)
	r, ok := s.readers[slot]
	if !ok {
		r = newReader(s)
		s.readers[slot] = r
		s.wg.Add(2)
		go r.run()
		go r.unblockLoop()
		if len(s.readers) == 1 {
			s.wg.Add(1)
			go s.reclaimer.run()
		}
	}
	src.attach(r)
}

// stopReading lets nobody read the topic's sources when it has no subscription left, and forgets a topic that holds nothing.
func (s *Subscriber) stopReading(t *topicQueue) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !t.isIdle() {
		return
	}
	for _, src := range t.sources {
		src.detach()
	}
}

// activeSources returns the sources that are being read.
func (s *Subscriber) activeSources() []*streamState {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := make([]*streamState, 0, len(s.sources))
	for _, src := range s.sources {
		if src.reader.Load() != nil {
			list = append(list, src)
		}
	}
	return list
}
