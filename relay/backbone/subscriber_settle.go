package backbone

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	// gatherFor and gatherMost bound how long and how many acks are gathered for one pipeline, unless a lane waits for
	// them to be stored.
	gatherFor  = time.Millisecond
	gatherMost = 256
)

// settler stores acks and releases in Redis, in order of their coming, by one goroutine. What comes while that is under
// way goes together in the next pipeline.
type settler struct {
	s *Subscriber

	mu       sync.Mutex
	pending  settlement
	started  bool
	closing  bool
	first    chan struct{} // something is pending
	now      chan struct{} // and should not wait
	finished chan struct{}
	err      error // of the last flush, valid after finished
}

// settlement is what one flush stores.
type settlement struct {
	acks     []*queueEntry
	releases []*queueEntry
	drops    []dropped
}

type dropped struct {
	src *source
	ids []string
}

func (w *settlement) len() int { return len(w.acks) + len(w.releases) + len(w.drops) }

func newSettler(s *Subscriber) *settler {
	return &settler{
		s:        s,
		first:    make(chan struct{}, 1),
		now:      make(chan struct{}, 1),
		finished: make(chan struct{}),
	}
}

// ack removes the entry from its stream soon.
func (a *settler) ack(e *queueEntry) {
	a.mu.Lock()
	a.pending.acks = append(a.pending.acks, e)
	n := a.pending.len()
	a.startLocked()
	a.mu.Unlock()
	if n == 1 {
		poke(a.first)
	}
	if n >= gatherMost {
		a.hurry()
	}
}

// hurry says that what is pending should be stored now, since somebody waits for it.
func (a *settler) hurry() { poke(a.now) }

// release makes the entries, which are leaving, free for any consumer at once.
func (a *settler) release(entries []*queueEntry) {
	a.mu.Lock()
	a.pending.releases = append(a.pending.releases, entries...)
	a.startLocked()
	a.mu.Unlock()
	poke(a.first)
	a.hurry()
}

// drop acks ids that are not in memory.
func (a *settler) drop(src *source, ids []string) {
	a.mu.Lock()
	a.pending.drops = append(a.pending.drops, dropped{src, ids})
	a.startLocked()
	a.mu.Unlock()
	poke(a.first)
}

func (a *settler) backlog() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.pending.len()
}

func (a *settler) startLocked() {
	if !a.started {
		a.started = true
		go a.run()
	}
}

// close stores what is pending and returns when that is done, at the latest after flushTimeout.
func (a *settler) close() error {
	a.mu.Lock()
	a.closing = true
	started := a.started
	a.mu.Unlock()
	if !started {
		return nil
	}
	poke(a.first)
	a.hurry()
	<-a.finished
	return a.err
}

func (a *settler) run() {
	defer close(a.finished)
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		<-a.first
		timer.Reset(gatherFor)
		select {
		case <-a.now:
		case <-timer.C:
		}
		a.mu.Lock()
		work := a.pending
		a.pending = settlement{}
		closing := a.closing
		a.mu.Unlock()
		a.flush(&work)
		if closing {
			return
		}
	}
}

// flush repeats until Redis has answered; while closing, for flushTimeout.
func (a *settler) flush(work *settlement) {
	if work.len() == 0 {
		return
	}
	var wait backoff
	deadline := time.Time{}
	for {
		err := a.store(work)
		if err == nil {
			a.err = nil
			a.forget(work)
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

// store sends one pipeline. Every command of it may be repeated. An entry is deleted before it is acked: a crash in
// between leaves a pending id without an entry, which is cleared away, and not an entry that nobody ever reads.
func (a *settler) store(work *settlement) error {
	ctx, cancel := context.WithTimeout(context.Background(), flushTimeout)
	defer cancel()
	pipe := a.s.cfg.Commands.Pipeline()
	for src, ids := range bySource(work.acks) {
		a.remove(ctx, pipe, src, ids)
	}
	for _, d := range work.drops {
		a.remove(ctx, pipe, d.src, pointers(d.ids))
	}
	for src, ids := range bySource(work.releases) {
		pipe.Do(ctx, a.s.giveBack(src.stream, ids)...)
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

func (a *settler) remove(ctx context.Context, pipe redis.Pipeliner, src *source, ids []*string) {
	args := make([]any, 0, 5+2*len(ids))
	if !a.s.cfg.KeepAcked {
		args = appendIDs(append(args, "XDEL", src.stream), ids)
		pipe.Do(ctx, args...)
	}
	from := len(args)
	args = appendIDs(append(args, "XACK", src.stream, a.s.cfg.Group), ids)
	pipe.Do(ctx, args[from:]...)
}

// forget lets go of what was stored. Released entries may now be read again, by this node too.
func (a *settler) forget(work *settlement) {
	forgetAll(work.acks, true)
	forgetAll(work.releases, false)
	for src, ids := range bySource(work.releases) {
		src.left(len(ids))
		if r := src.reader.Load(); r != nil {
			r.wake()
		}
	}
}

// forgetAll tells each topic how many of its acks were stored.
func forgetAll(entries []*queueEntry, acked bool) {
	for len(entries) > 0 {
		n := 1
		for n < len(entries) && entries[n].src == entries[0].src {
			n++
		}
		entries[0].src.forget(entries[:n], acked)
		for _, e := range entries[:n] {
			e.body, e.msg = nil, nil
		}
		if acked {
			entries[0].src.topic.stored(n)
		}
		entries = entries[n:]
	}
}

func bySource(entries []*queueEntry) map[*source][]*string {
	if len(entries) == 0 {
		return nil
	}
	m := make(map[*source][]*string, 1)
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

func pointers(ids []string) []*string {
	list := make([]*string, len(ids))
	for i := range ids {
		list[i] = &ids[i]
	}
	return list
}
