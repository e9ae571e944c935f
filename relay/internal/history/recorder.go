package history

import (
	"context"
	"encoding/binary"
	"log/slog"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hubrelay/hubrelay/internal/await"
	"github.com/hubrelay/hubrelay/internal/backoff"
	"github.com/hubrelay/hubrelay/internal/keyspace"
	"github.com/hubrelay/hubrelay/internal/streamid"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
)

const (
	// shardCount is the number of streams. All records of an event are in one of them, so finding them reads a small part
	// of the history.
	shardCount = 64
	// flushDelay is the time for which records are collected. A crash loses the records of this time and of one write.
	flushDelay = 200 * time.Millisecond
	// maxShardBytes is the size of the records of one shard at which they are written before flushDelay ends. Further
	// records are dropped until they are.
	maxShardBytes = 32 << 10
	// maxRecordBytes is the maximum size of a record with typical names.
	maxRecordBytes = 512
	// keepShardBytes is the size up to which the buffer of a shard is reused.
	keepShardBytes = 4 << 10
	flushTimeout   = 5 * time.Second
	trimInterval   = time.Minute
	field          = "b"
)

// Key is the stream with one shard of the history.
func Key(k keyspace.Space, shard int) string { return k.Global("history:" + strconv.Itoa(shard)) }

// NamesKey is the hash with the numbers of names.
func NamesKey(k keyspace.Space) string { return k.Global("history:names") }

// Observer counts for metrics. Its methods may be called concurrently and must not block.
type Observer interface {
	// HistoryStored counts records that were stored.
	HistoryStored(records int)
	// HistoryDropped counts records that were not stored, because Redis was too slow or unreachable.
	HistoryDropped(records int)
}

// Retention limits the history.
type Retention struct {
	MaxAge   time.Duration
	MaxBytes int64 // memory in Redis
}

// Store is the history in Redis. It may be used concurrently.
type Store struct {
	conn  *redisconn.Conn
	keys  keyspace.Space
	names *nameTable
}

// NewStore returns the history.
func NewStore(c *redisconn.Conn, keys keyspace.Space) *Store {
	return &Store{conn: c, keys: keys, names: newNameTable(c.Commands(), NamesKey(keys))}
}

// RecorderOptions configure a [Recorder]. All fields are required.
type RecorderOptions struct {
	Store *Store
	// Node is the name of this node.
	Node string
	// OnlyFailures discards attempts that succeed at once, and numbers of clients.
	OnlyFailures bool
	// Retention returns the limits. It is called once per minute, and when filters change.
	Retention func() Retention
	Observer  Observer
	Log       *slog.Logger
}

// Recorder records what happens to events. Its Record methods only copy to memory and never wait for Redis. They may be
// called concurrently. A nil Recorder records nothing.
type Recorder struct {
	opts   RecorderOptions
	shards [shardCount]shard
	dirty  chan struct{} // a shard has records
	full   chan struct{} // a shard has many records

	filterVersion atomic.Pointer[string] // of the filters in force

	changesMu sync.Mutex
	changes   []SinkChange // not stored yet
}

// shard collects the encoded records of one stream.
type shard struct {
	mu      sync.Mutex
	records []byte
	start   int // of the record that is being encoded
	count   int
	dropped int
	spare   []byte // reused by the next flush
}

// NewRecorder returns a recorder. [Recorder.Run] must be called once.
func NewRecorder(o RecorderOptions) *Recorder {
	return &Recorder{opts: o, dirty: make(chan struct{}, 1), full: make(chan struct{}, 1)}
}

// hashAccount returns the hash of an account in records.
func hashAccount(account string) uint32 { return hashFNV(account) }

func (r *Recorder) eventOf(n *relay.Notification) (e EventRef, ok bool) {
	if e.ID, ok = ParseEventID(n.ID); !ok {
		return e, false
	}
	e.Cursor, _ = streamid.ParsePosition(n.Cursor)
	e.Partition, e.Topic, e.AccountHash = r.opts.Store.keys.Partition(n.Hub), n.Topic, hashAccount(n.Account)
	return e, true
}

// RecordsAll reports whether successful attempts are recorded.
func (r *Recorder) RecordsAll() bool { return r != nil && !r.opts.OnlyFailures }

// RecordAttempt records an attempt for an event. a needs no Event and no Node, and is not changed.
func (r *Recorder) RecordAttempt(n *relay.Notification, a *Attempt) {
	if r == nil || r.opts.OnlyFailures && a.State == StateDelivered && !a.WasScheduled {
		return
	}
	if e, ok := r.eventOf(n); ok {
		if s := r.begin(e.ID); s != nil {
			s.records = a.appendFields(e.appendTo(s.records, r.opts.Store.names, kindAttempt), &e, r.opts.Store.names)
			r.end(s)
		}
	}
}

// RecordClients records that an event was sent to a number of clients of this node.
func (r *Recorder) RecordClients(n *relay.Notification, count int) {
	if r == nil || r.opts.OnlyFailures || count == 0 {
		return
	}
	if e, ok := r.eventOf(n); ok {
		if s := r.begin(e.ID); s != nil {
			s.records = binary.AppendUvarint(e.appendTo(s.records, r.opts.Store.names, kindClients), uint64(count))
			r.end(s)
		}
	}
}

// RecordDrop records that a limit or an operator excluded an event from a sink. There must be few reasons. It
// sets the event of d.
func (r *Recorder) RecordDrop(n *relay.Notification, d Drop) {
	if r == nil {
		return
	}
	if e, ok := r.eventOf(n); ok {
		d.Event = e
		if s := r.begin(e.ID); s != nil {
			s.records = d.appendTo(s.records, r.opts.Store.names)
			r.end(s)
		}
	}
}

// begin locks the shard of an event, so the caller can append a record without its length and call end. It returns nil if the
// shard is full. A record is encoded in place, because a buffer on the stack of the caller would make many stacks grow.
func (r *Recorder) begin(id EventID) *shard {
	s := &r.shards[id.shardNumber()]
	s.mu.Lock()
	if len(s.records) > maxShardBytes-maxRecordBytes {
		s.dropped++
		s.mu.Unlock()
		signalOn(r.full)
		return nil
	}
	s.start = len(s.records)
	s.records = append(s.records, 0) // the length, which is usually below 128
	return s
}

// end adds the length of the record, and unlocks the shard.
func (r *Recorder) end(s *shard) {
	s.records = insertLength(s.records, s.start)
	s.count++
	isFirst, isFull := s.count == 1, len(s.records) > maxShardBytes/2
	s.mu.Unlock()
	if isFirst {
		signalOn(r.dirty)
	}
	if isFull {
		signalOn(r.full)
	}
}

// insertLength replaces the byte at start by the length of what follows, as a uvarint.
func insertLength(b []byte, start int) []byte {
	n := len(b) - start - 1
	var length [binary.MaxVarintLen64]byte
	size := binary.PutUvarint(length[:], uint64(n))
	if size > 1 {
		b = append(b, length[1:size]...)
		copy(b[start+size:], b[start+1:start+1+n])
	}
	copy(b[start:], length[:size])
	return b
}

func signalOn(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Run writes records and removes old ones until ctx ends. It then writes the rest and returns nil.
func (r *Recorder) Run(ctx context.Context) error {
	trim := time.NewTimer(backoff.Jitter(trimInterval))
	defer trim.Stop()
	for {
		select {
		case <-ctx.Done():
			r.flush(context.WithoutCancel(ctx))
			return nil
		case <-trim.C:
			r.trimStreams(ctx)
			r.keepFilters(ctx)
			if err := r.opts.Store.names.loadAll(ctx); err != nil {
				r.opts.Log.Debug("names of the history could not be read", "error", err)
			}
			trim.Reset(backoff.Jitter(trimInterval))
		case <-r.dirty:
			delay, cancel := context.WithTimeout(ctx, flushDelay)
			_, _ = await.Value(delay, r.full) // either may come first
			cancel()
			r.flush(context.WithoutCancel(ctx))
		}
	}
}

// flush writes all records. After an error, it drops them.
func (r *Recorder) flush(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, flushTimeout)
	defer cancel()
	r.flushChanges(ctx)
	err := r.opts.Store.names.resolveUnknown(ctx)
	if err != nil {
		r.opts.Log.Debug("names of the history could not be stored", "error", err)
	}
	var blocks [shardCount][]byte
	stored, dropped := 0, 0
	for i := range r.shards {
		s := &r.shards[i]
		s.mu.Lock()
		if s.count > 0 {
			blocks[i] = s.records
			s.records = s.spare
			s.spare = nil
		}
		stored, dropped = stored+s.count, dropped+s.dropped
		s.count, s.dropped = 0, 0
		s.mu.Unlock()
	}
	if err := r.storeBlocks(ctx, &blocks); err != nil {
		// The connection logs outages.
		r.opts.Log.Debug("the history could not be stored", "error", err)
		stored, dropped = 0, stored+dropped
	}
	if stored > 0 {
		r.opts.Observer.HistoryStored(stored)
	}
	if dropped > 0 {
		r.opts.Observer.HistoryDropped(dropped)
	}
	for i, b := range blocks {
		if b != nil && cap(b) <= keepShardBytes {
			s := &r.shards[i]
			s.mu.Lock()
			s.spare = b[:0]
			s.mu.Unlock()
		}
	}
}

func (r *Recorder) storeBlocks(ctx context.Context, blocks *[shardCount][]byte) error {
	head := appendBlockHead(nil, r.opts.Node)
	_, err := r.opts.Store.conn.Commands().Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for i, records := range blocks {
			if records != nil {
				block := append(head[:len(head):len(head)], records...)
				pipe.Do(ctx, "XADD", Key(r.opts.Store.keys, i), "*", field, block)
			}
		}
		return nil
	})
	return err
}

// trimStreams removes what exceeds the retention. Redis removes whole nodes of a stream, so a little more may remain.
func (r *Recorder) trimStreams(ctx context.Context) {
	limits := r.opts.Retention()
	oldest := strconv.FormatInt(time.Now().Add(-limits.MaxAge).UnixMilli(), 10)
	client := r.opts.Store.conn.Commands()
	for i := range shardCount {
		key := Key(r.opts.Store.keys, i)
		err := client.XTrimMinIDApprox(ctx, key, oldest, 0).Err()
		if err == nil {
			err = redisconn.TrimToBytes(ctx, client, redisconn.ByteLimit{
				Key: key, MaxBytes: max(limits.MaxBytes/shardCount, 1), Trim: func(maxLen int64) (int64, error) {
					return client.XTrimMaxLenApprox(ctx, key, maxLen, 0).Result()
				},
			})
		}
		if err != nil {
			r.opts.Log.Debug("the history could not be trimmed", "error", err)
			return
		}
	}
}
