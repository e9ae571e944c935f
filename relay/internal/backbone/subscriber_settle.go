package backbone

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	// ackFlushDelay and gatherMost bound how long and how many acks are gathered for one pipeline, unless a lane waits for
	// them to be stored.
	ackFlushDelay = time.Millisecond
	ackFlushSize  = 256
)

// acker stores acks and releases in Redis, in order of their coming, by one goroutine. What comes while that is under
// way goes together in the next pipeline.
type acker struct {
	s *Subscriber

	mu         sync.Mutex
	pending    ackBatch
	started    bool
	closing    bool
	hasPending chan struct{} // something is pending
	flushNow   chan struct{} // and should not wait
	finished   chan struct{}
	err        error // of the last flush, valid after finished
}

// ackBatch is what one flush stores.
type ackBatch struct {
	acks     []*queueEntry
	releases []*queueEntry
	drops    []unknownAcks
}

type unknownAcks struct {
	src *streamState
	ids []string
}

func (w *ackBatch) len() int { return len(w.acks) + len(w.releases) + len(w.drops) }

func newSettler(s *Subscriber) *acker {
	return &acker{
		s:          s,
		hasPending: make(chan struct{}, 1),
		flushNow:   make(chan struct{}, 1),
		finished:   make(chan struct{}),
	}
}

// ack removes the entry from its stream soon.
func (a *acker) ack(e *queueEntry) {
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

// flushSoon says that what is pending should be stored now, since somebody waits for it.
func (a *acker) flushSoon() { trySignal(a.flushNow) }

// releaseEntries makes the entries, which are leaving, free for any consumer at once.
func (a *acker) releaseEntries(entries []*queueEntry) {
	a.mu.Lock()
	a.pending.releases = append(a.pending.releases, entries...)
	a.startLocked()
	a.mu.Unlock()
	trySignal(a.hasPending)
	a.flushSoon()
}

// ackUnknown acks ids that are not in memory.
func (a *acker) ackUnknown(src *streamState, ids []string) {
	a.mu.Lock()
	a.pending.drops = append(a.pending.drops, unknownAcks{src, ids})
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

// close stores what is pending and returns when that is done, at the latest after flushTimeout.
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
		work := a.pending
		a.pending = ackBatch{}
		closing := a.closing
		a.mu.Unlock()
		a.flush(&work)
		if closing {
			return
		}
	}
}

// flush repeats until Redis has answered; while closing, for flushTimeout.
func (a *acker) flush(work *ackBatch) {
	if work.len() == 0 {
		return
	}
	var wait backoff
	deadline := time.Time{}
	for {
		err := a.writeBatch(work)
		if err == nil {
			a.err = nil
			a.complete(work)
			return
		}
		if wait.d == 0 {
			a.s.cfg.Log.Warn("storing acks failed, trying again", "error", err, "entries", work.len())
		}
		if a.s.ctx.Err() != nil {
			if deadline.IsZero() {
				deadline = time.Now().Add(flushTimeout)
			}
			if time.Now().After(deadline) {
				a.err = fmt.Errorf("%d acks were not stored, so their messages come again: %w", work.len(), err)
				return
			}
		}
		timer := time.NewTimer(wait.next())
		<-timer.C
	}
}

// writeBatch sends one pipeline. Every command of it may be repeated. An entry is deleted before it is acked: a crash in
// between leaves a pending id without an entry, which is cleared away, and not an entry that nobody ever reads.
func (a *acker) writeBatch(work *ackBatch) error {
	ctx, cancel := context.WithTimeout(context.Background(), flushTimeout)
	defer cancel()
	pipe := a.s.cfg.Commands.Pipeline()
	for src, ids := range bySource(work.acks) {
		a.remove(ctx, pipe, src, ids)
	}
	for _, d := range work.drops {
		a.remove(ctx, pipe, d.src, toPointers(d.ids))
	}
	for src, ids := range bySource(work.releases) {
		pipe.Do(ctx, a.s.releaseCommand(src.stream, ids)...)
	}
	cmds, err := pipe.Exec(ctx)
	if err == nil {
		return nil
	}
	for _, cmd := range cmds {
		err := cmd.Err()
		if err != nil && isTransient(err) {
			return err
		}
		if err != nil && !redis.HasErrorPrefix(err, "NOGROUP") {
			a.s.cfg.Log.Error("an ack was refused", "error", err, "command", cmd.Name())
		}
	}
	return nil
}

func (a *acker) remove(ctx context.Context, pipe redis.Pipeliner, src *streamState, ids []*string) {
	args := make([]any, 0, 5+2*len(ids))
	if !a.s.cfg.KeepAcked {
		args = appendIDs(append(args, "XDEL", src.stream), ids)
		pipe.Do(ctx, args...)
	}
	from := len(args)
	args = appendIDs(append(args, "XACK", src.stream, a.s.cfg.Group), ids)
	pipe.Do(ctx, args[from:]...)
}

// complete lets go of what was stored. Released entries may now be read again, by this node too.
func (a *acker) complete(work *ackBatch) {
	completeAll(work.acks, true)
	completeAll(work.releases, false)
	for src, ids := range bySource(work.releases) {
		src.released(len(ids))
		if r := src.reader.Load(); r != nil {
			r.wake()
		}
	}
}

// completeAll tells each topic how many of its acks were stored.
func completeAll(entries []*queueEntry, acked bool) {
	for len(entries) > 0 {
		n := 1
		for n < len(entries) && entries[n].src == entries[0].src {
			n++
		}
		entries[0].src.remove(entries[:n], acked)
		for _, e := range entries[:n] {
			e.body, e.msg = nil, nil
		}
		if acked {
			entries[0].src.topic.acksFlushed(n)
		}
		entries = entries[n:]
	}
}

func bySource(entries []*queueEntry) map[*streamState][]*string {
	if len(entries) == 0 {
		return nil
	}
	m := make(map[*streamState][]*string, 1)
	for _, e := range entries {
		m[e.src] = append(m[e.src], &e.id)
	}
	return m
}

// appendIDs appends pointers, which unlike strings are no memory of their own in an interface.
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
