package delivery

import (
	"context"
	_ "embed"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hubrelay/hubrelay/relay/internal/delivery/store"
)

// statsBuffer is what happened on this node since Redis was told: figures that outlive the node and count for all of them
// cost one write a second.
type statsBuffer struct {
	delivered, retried atomic.Int64

	mu          sync.Mutex
	counters    map[string]int64 // by field
	lastFailure attemptFailure
}

// attemptFailure is what an attempt failed by, and when that was; the zero value is none.
type attemptFailure struct {
	err      error
	failedAt time.Time
}

// statsDelta is what a tally held.
type statsDelta struct {
	counters    map[string]int64 // by field
	lastFailure attemptFailure
}

// recordAttempt takes in one attempt that ended at some time; f.err is nil where it delivered.
func (t *statsBuffer) recordAttempt(attempt int, f attemptFailure) {
	if attempt > 1 {
		t.retried.Add(1)
	}
	if f.err == nil {
		t.delivered.Add(1)
		return
	}
	t.add(store.FieldFailedPrefix+FailureReason(f.err), 1)
	t.recordFailure(f)
}

// recordFailure remembers a failure unless a later one is known.
func (t *statsBuffer) recordFailure(f attemptFailure) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !f.failedAt.Before(t.lastFailure.failedAt) {
		t.lastFailure = f
	}
}

func (t *statsBuffer) add(field string, n int64) {
	switch field {
	case store.FieldDelivered:
		t.delivered.Add(n)
	case store.FieldRetried:
		t.retried.Add(n)
	default:
		t.mu.Lock()
		if t.counters == nil {
			t.counters = make(map[string]int64)
		}
		t.counters[field] += n
		t.mu.Unlock()
	}
}

// drain returns what there is and begins anew; it is empty where nothing happened.
func (t *statsBuffer) drain() statsDelta {
	t.mu.Lock()
	all, last := t.counters, t.lastFailure
	t.counters, t.lastFailure = nil, attemptFailure{}
	t.mu.Unlock()
	delivered, retried := t.delivered.Swap(0), t.retried.Swap(0)
	if all == nil && delivered+retried > 0 {
		all = make(map[string]int64, 2)
	}
	if delivered > 0 {
		all[store.FieldDelivered] = delivered
	}
	if retried > 0 {
		all[store.FieldRetried] = retried
	}
	return statsDelta{all, last}
}

// restore takes in again what could not be told.
func (t *statsBuffer) restore(h statsDelta) {
	for field, n := range h.counters {
		t.add(field, n)
	}
	if h.lastFailure.err != nil {
		t.recordFailure(h.lastFailure)
	}
}

// delta returns h for the store.
func (h *statsDelta) delta(sink string, now time.Time) store.StatsDelta {
	d := store.StatsDelta{Sink: sink, Counters: h.counters}
	if h.lastFailure.err != nil {
		d.LastError = store.Truncate(h.lastFailure.err.Error(), store.MaxErrorBytes)
		d.ErrorAge = now.Sub(h.lastFailure.failedAt)
	}
	return d
}

// addStats adds the statistics of pipelines to those in Redis. What fails is added with the next call.
func addStats(ctx context.Context, s *store.Store, pipelines []*Pipeline) error {
	var buffers []*statsBuffer
	var drained []statsDelta
	var deltas []store.StatsDelta
	for _, p := range pipelines {
		h := p.stats.drain()
		if len(h.counters) == 0 && h.lastFailure.err == nil {
			continue
		}
		buffers, drained = append(buffers, &p.stats), append(drained, h)
		deltas = append(deltas, h.delta(p.opts.Name, p.opts.Now()))
	}
	return s.Stats.Add(ctx, deltas, func(i int) { buffers[i].restore(drained[i]) })
}

// flushStats stores what happened since it was stored last, and tells other sinks about dead letters; about those too that
// were to wait where force is set.
func (r *RetryScheduler) flushStats(ctx context.Context, force bool) {
	r.writeStats(ctx, r.pipelines(), force)
}

func (r *RetryScheduler) pipelines() []*Pipeline {
	r.mu.Lock()
	defer r.mu.Unlock()
	pipelines := make([]*Pipeline, 0, len(r.sinks))
	for _, d := range r.sinks {
		pipelines = append(pipelines, d.pipeline)
	}
	return pipelines
}

// FlushStats stores the figures of what has happened on this node, which Run does every second, for whoever is about to read them. It
// may be called concurrently with everything else; after an error Run tells them.
func (r *RetryScheduler) FlushStats(ctx context.Context) error {
	return addStats(ctx, r.o.Store, r.pipelines())
}

func (r *RetryScheduler) writeStats(ctx context.Context, pipelines []*Pipeline, force bool) {
	ctx, cancel := context.WithTimeout(ctx, pollTimeout)
	defer cancel()
	if err := addStats(ctx, r.o.Store, pipelines); err != nil {
		if ctx.Err() == nil {
			r.o.Log.Warn("cannot store the figures of sinks; trying again soon", "error", err)
		}
		return
	}
	for _, p := range pipelines {
		p.sendDeadLetterNotices(ctx, force)
	}
}

// Flush stores and tells what Run, which does so every second, has left over. It is for whoever has ended all that
// delivers.
func (r *RetryScheduler) Flush(ctx context.Context) { r.flushStats(context.WithoutCancel(ctx), true) }

// Dropped counts notifications that left the sink's full queue undelivered, in its figures.
func (p *Pipeline) Dropped(n int64) { p.stats.add(store.FieldDropped, n) }

// InFlight is how many attempts are being made on this node now.
func (p *Pipeline) InFlight() int64 { return p.attempts.running.Load() }
