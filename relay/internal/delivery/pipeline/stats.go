package pipeline

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hubrelay/hubrelay/relay/internal/delivery/attempt"
	"github.com/hubrelay/hubrelay/relay/internal/delivery/store"
)

const (
	reportInterval = time.Second
	reportTimeout  = 5 * time.Second
)

// statsBuffer contains the statistics of a sink that are not stored yet. It may be used concurrently.
type statsBuffer struct {
	delivered, retried, microseconds atomic.Int64

	mu          sync.Mutex
	counters    map[string]int64 // by field
	lastFailure attemptFailure
}

// attemptFailure is a failed attempt. The zero value means no failure.
type attemptFailure struct {
	err      error
	failedAt time.Time
}

// statsDelta is the drained content of a statsBuffer.
type statsDelta struct {
	counters    map[string]int64 // by field
	lastFailure attemptFailure
}

// recordAttempt counts the attempt with a number, starting at 1, and its duration. f.err is nil if it delivered.
func (b *statsBuffer) recordAttempt(number int, duration time.Duration, f attemptFailure) {
	b.microseconds.Add(duration.Microseconds())
	if number > 1 {
		b.retried.Add(1)
	}
	if f.err == nil {
		b.delivered.Add(1)
		return
	}
	b.add(store.FieldFailedPrefix+attempt.FailureReason(f.err), 1)
	b.recordFailure(f)
}

func (b *statsBuffer) addDropped(n int64) { b.add(store.FieldDropped, n) }

// recordFailure keeps a failure unless a later one is known.
func (b *statsBuffer) recordFailure(f attemptFailure) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !f.failedAt.Before(b.lastFailure.failedAt) {
		b.lastFailure = f
	}
}

func (b *statsBuffer) add(field string, n int64) {
	switch field {
	case store.FieldDelivered:
		b.delivered.Add(n)
	case store.FieldRetried:
		b.retried.Add(n)
	case store.FieldMicroseconds:
		b.microseconds.Add(n)
	default:
		b.mu.Lock()
		if b.counters == nil {
			b.counters = make(map[string]int64)
		}
		b.counters[field] += n
		b.mu.Unlock()
	}
}

// drain empties the buffer.
func (b *statsBuffer) drain() statsDelta {
	b.mu.Lock()
	counters, failure := b.counters, b.lastFailure
	b.counters, b.lastFailure = nil, attemptFailure{}
	b.mu.Unlock()
	add := func(field string, n int64) {
		if n == 0 {
			return
		}
		if counters == nil {
			counters = make(map[string]int64)
		}
		counters[field] = n
	}
	add(store.FieldDelivered, b.delivered.Swap(0))
	add(store.FieldRetried, b.retried.Swap(0))
	add(store.FieldMicroseconds, b.microseconds.Swap(0))
	return statsDelta{counters, failure}
}

// restore adds what could not be stored.
func (b *statsBuffer) restore(d statsDelta) {
	for field, n := range d.counters {
		b.add(field, n)
	}
	if d.lastFailure.err != nil {
		b.recordFailure(d.lastFailure)
	}
}

func (d *statsDelta) isEmpty() bool { return len(d.counters) == 0 && d.lastFailure.err == nil }

// forStore returns d as the store takes it.
func (d *statsDelta) forStore(sink string, now time.Time) store.StatsDelta {
	stored := store.StatsDelta{Sink: sink, Counters: d.counters}
	if d.lastFailure.err != nil {
		stored.LastError = store.Truncate(d.lastFailure.err.Error(), store.MaxErrorBytes)
		stored.ErrorAge = now.Sub(d.lastFailure.failedAt)
	}
	return stored
}

// CountDropped counts notifications that the full queue of the sink has dropped.
func (p *Pipeline) CountDropped(n int64) { p.stats.addDropped(n) }

// Reporter stores the statistics of all pipelines of a node once a second, so an attempt costs no write. It also sends
// notices about dead letters that were delayed. It may be used concurrently.
type Reporter struct {
	store *store.StatsStore
	log   *slog.Logger

	mu        sync.Mutex
	pipelines map[*Pipeline]struct{}
}

// NewReporter returns a Reporter without pipelines. log may be nil.
func NewReporter(s *store.StatsStore, log *slog.Logger) *Reporter {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Reporter{store: s, log: log, pipelines: make(map[*Pipeline]struct{})}
}

// Add adds a pipeline.
func (r *Reporter) Add(p *Pipeline) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pipelines[p] = struct{}{}
}

// Remove removes a pipeline and reports the rest of it.
func (r *Reporter) Remove(ctx context.Context, p *Pipeline) {
	r.mu.Lock()
	delete(r.pipelines, p)
	r.mu.Unlock()
	r.reportPipelines(context.WithoutCancel(ctx), []*Pipeline{p}, true)
}

// Run reports until ctx ends. It returns nil.
func (r *Reporter) Run(ctx context.Context) error {
	tick := time.NewTicker(reportInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			r.reportPipelines(ctx, r.listPipelines(), false)
		}
	}
}

// Flush reports everything at once. Call it after the last delivery.
func (r *Reporter) Flush(ctx context.Context) {
	r.reportPipelines(context.WithoutCancel(ctx), r.listPipelines(), true)
}

// FlushStats stores all statistics at once, for a caller that is about to read them. After an error, Run stores them.
func (r *Reporter) FlushStats(ctx context.Context) error { return r.storeStats(ctx, r.listPipelines()) }

func (r *Reporter) listPipelines() []*Pipeline {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Collect(maps.Keys(r.pipelines))
}

func (r *Reporter) reportPipelines(ctx context.Context, pipelines []*Pipeline, force bool) {
	ctx, cancel := context.WithTimeout(ctx, reportTimeout)
	defer cancel()
	if err := r.storeStats(ctx, pipelines); err != nil {
		if ctx.Err() == nil {
			r.log.Warn("stats of sinks could not be stored", "error", err)
		}
		return
	}
	for _, p := range pipelines {
		p.deadLetters.Flush(ctx, force)
	}
}

func (r *Reporter) storeStats(ctx context.Context, pipelines []*Pipeline) error {
	var buffers []*statsBuffer
	var drained []statsDelta
	var deltas []store.StatsDelta
	for _, p := range pipelines {
		if d := p.stats.drain(); !d.isEmpty() {
			buffers, drained = append(buffers, p.stats), append(drained, d)
			deltas = append(deltas, d.forStore(p.opts.Name, p.opts.Now()))
		}
	}
	return r.store.Add(ctx, deltas, func(i int) { buffers[i].restore(drained[i]) })
}
