package subscriber

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
)

const (
	// ackFlushDelay and ackFlushSize are the maximum time and number of acks that are collected for a pipeline,
	// unless a worker waits for them.
	ackFlushDelay = time.Millisecond
	ackFlushSize  = 256
)

// acker stores acks and releases in Redis, in their order and in one goroutine. What arrives during a flush is stored
// by the next one.
type acker struct {
	s *Subscriber

	mu         sync.Mutex
	pending    ackBatch
	started    bool
	closing    bool
	hasPending chan struct{}
	flushNow   chan struct{} // do not wait for more
	finished   chan struct{}
	err        error // of the last flush, valid after finished
}

// ackBatch is the content of one flush.
type ackBatch struct {
	acks     []*queueEntry
	releases []*queueEntry
	unknown  []unknownAcks
}

// unknownAcks are entries of a stream that are not in memory.
type unknownAcks struct {
	st  *streamState
	ids []string
}

func (b *ackBatch) len() int { return len(b.acks) + len(b.releases) + len(b.unknown) }

// takeStored removes the acks of stored entries from the batch.
func (b *ackBatch) takeStored() (stored []*queueEntry) {
	b.acks = slices.DeleteFunc(b.acks, func(e *queueEntry) bool {
		if e.stored {
			stored = append(stored, e)
		}
		return e.stored
	})
	return stored
}

func newAcker(s *Subscriber) *acker {
	return &acker{
		s:          s,
		hasPending: make(chan struct{}, 1),
		flushNow:   make(chan struct{}, 1),
		finished:   make(chan struct{}),
	}
}

// ackEntry removes the entry from its stream soon.
func (a *acker) ackEntry(e *queueEntry) {
	a.mu.Lock()
	a.pending.acks = append(a.pending.acks, e)
	n := a.pending.len()
	a.startLocked()
	a.mu.Unlock()
	if n == 1 {
		trySignal(a.hasPending)
	}
	if n >= ackFlushSize {
		a.flushSoon()
	}
}

// flushSoon stores the pending acks without waiting for more.
func (a *acker) flushSoon() { trySignal(a.flushNow) }

// releaseEntries makes entries available to all consumers. See markReleasing.
func (a *acker) releaseEntries(entries []*queueEntry) {
	a.mu.Lock()
	a.pending.releases = append(a.pending.releases, entries...)
	a.startLocked()
	a.mu.Unlock()
	trySignal(a.hasPending)
	a.flushSoon()
}

// ackUnknown acks entries that are not in memory.
func (a *acker) ackUnknown(st *streamState, ids []string) {
	a.mu.Lock()
	a.pending.unknown = append(a.pending.unknown, unknownAcks{st, ids})
	a.startLocked()
	a.mu.Unlock()
	trySignal(a.hasPending)
}

func (a *acker) pendingCount() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.pending.len()
}

func (a *acker) startLocked() {
	if !a.started {
		a.started = true
		go a.run()
	}
}

// close stores what is pending. It returns after flushTimeout at the latest.
func (a *acker) close() error {
	a.mu.Lock()
	a.closing = true
	started := a.started
	a.mu.Unlock()
	if !started {
		return nil
	}
	trySignal(a.hasPending)
	a.flushSoon()
	<-a.finished
	return a.err
}

func (a *acker) run() {
	defer close(a.finished)
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		<-a.hasPending
		timer.Reset(ackFlushDelay)
		select {
		case <-a.flushNow:
		case <-timer.C:
		}
		a.mu.Lock()
		batch := a.pending
		a.pending = ackBatch{}
		closing := a.closing
		a.mu.Unlock()
		a.flush(&batch)
		if closing {
			return
		}
	}
}

// flush repeats a write until Redis has replied, or for flushTimeout after Close. It repeats no ack of a stored entry: a
// replica that has become the primary may have the entry without what the handler stored. Such an entry is delivered again.
func (a *acker) flush(batch *ackBatch) {
	if batch.len() == 0 {
		return
	}
	retry := newBackoff()
	deadline := time.Time{}
	for {
		err := a.writeBatch(batch)
		if err == nil {
			a.err = nil
			a.completeBatch(batch)
			if !retry.IsReset() {
				a.mu.Lock()
				stored := a.pending.takeStored() // their content may be only on the previous primary
				a.mu.Unlock()
				redeliverEntries(stored)
			}
			return
		}
		if retry.IsReset() {
			a.s.cfg.Log.Warn("storing acks failed", "error", err, "entry_count", batch.len())
			redeliverEntries(batch.takeStored())
		}
		if a.s.ctx.Err() != nil {
			if deadline.IsZero() {
				deadline = time.Now().Add(flushTimeout)
			}
			if time.Now().After(deadline) {
				a.err = fmt.Errorf("store %d acks, whose messages are delivered again: %w", batch.len(), err)
				return
			}
		}
		timer := time.NewTimer(retry.Next())
		<-timer.C
	}
}

// writeBatch sends one pipeline. All of its commands may be repeated. It deletes an entry before it acks the entry.
// After a crash in between, a pending ID without entry remains, which is removed later. In the other order, an entry
// would remain that no consumer ever reads.
func (a *acker) writeBatch(batch *ackBatch) error {
	ctx, cancel := context.WithTimeout(context.Background(), flushTimeout)
	defer cancel()
	pipe := a.s.cfg.Commands.Pipeline()
	for st, ids := range groupByStream(batch.acks) {
		a.remove(ctx, pipe, st, ids)
	}
	for _, u := range batch.unknown {
		a.remove(ctx, pipe, u.st, toPointers(u.ids))
	}
	for st, ids := range groupByStream(batch.releases) {
		pipe.Do(ctx, a.s.releaseCommand(st.name, ids)...)
	}
	cmds, err := pipe.Exec(ctx)
	if err == nil {
		return nil
	}
	for _, cmd := range cmds {
		err := cmd.Err()
		if err != nil && redisconn.IsTransient(err) {
			return redisconn.WrapError("store acks", err)
		}
		if err != nil && !redis.HasErrorPrefix(err, "NOGROUP") {
			a.s.cfg.Log.Error("redis rejected an ack", "error", err, "command", cmd.Name())
		}
	}
	return nil
}

func (a *acker) remove(ctx context.Context, pipe redis.Pipeliner, st *streamState, ids []*string) {
	args := make([]any, 0, 5+2*len(ids))
	if !a.s.cfg.KeepAcked {
		args = appendIDs(append(args, "XDEL", st.name), ids)
		pipe.Do(ctx, args...)
	}
	from := len(args)
	args = appendIDs(append(args, "XACK", st.name, a.s.cfg.Group), ids)
	pipe.Do(ctx, args[from:]...)
}

// completeBatch removes stored entries from memory. Released ones may now be read again, also by this node.
func (a *acker) completeBatch(batch *ackBatch) {
	completeEntries(batch.acks, true)
	completeEntries(batch.releases, false)
	for st, ids := range groupByStream(batch.releases) {
		st.recordRelease(len(ids))
		if r := st.reader.Load(); r != nil {
			r.wakeUp()
		}
	}
}

// completeEntries removes entries from memory and notifies the topics of stored acks.
func completeEntries(entries []*queueEntry, acked bool) {
	for len(entries) > 0 {
		st, n := entries[0].st, 1
		for n < len(entries) && entries[n].st == st {
			n++
		}
		st.remove(entries[:n], acked)
		for _, e := range entries[:n] {
			e.body, e.msg = nil, nil
		}
		if acked {
			st.topic.acksFlushed(n)
		}
		entries = entries[n:]
	}
}

// redeliverEntries removes acked entries from memory, so they are read and delivered again.
func redeliverEntries(entries []*queueEntry) {
	completeEntries(entries, false)
	for st, ids := range groupByStream(entries) {
		st.topic.acksFlushed(len(ids))
		st.restartPending()
		if r := st.reader.Load(); r != nil {
			r.wakeUp()
		}
	}
}

func groupByStream(entries []*queueEntry) map[*streamState][]*string {
	if len(entries) == 0 {
		return nil
	}
	m := make(map[*streamState][]*string, 1)
	for _, e := range entries {
		m[e.st] = append(m[e.st], &e.id)
	}
	return m
}

// appendIDs appends pointers. Unlike strings, they need no allocation as an interface value.
func appendIDs(args []any, ids []*string) []any {
	for _, id := range ids {
		args = append(args, id)
	}
	return args
}

func toPointers(ids []string) []*string {
	list := make([]*string, len(ids))
	for i := range ids {
		list[i] = &ids[i]
	}
	return list
}
