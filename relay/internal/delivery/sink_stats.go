package delivery

import (
	"context"
	_ "embed"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

//go:embed scripts/stats_add.lua
var tallySource string

// The fields of a sink's figures in Redis.
const (
	fieldDelivered   = "delivered"
	fieldRetried     = "retried"
	fieldDropped     = "dropped"
	fieldFailed      = "failed:" // and the reason
	fieldLastSuccess = "last_success"
	fieldLastError   = "last_error"
	fieldLastErrorAt = "last_error_at"
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
	t.add(fieldFailed+FailureReason(f.err), 1)
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
	case fieldDelivered:
		t.delivered.Add(n)
	case fieldRetried:
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
		all[fieldDelivered] = delivered
	}
	if retried > 0 {
		all[fieldRetried] = retried
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

// scriptArgs is h as the script takes it.
func (h *statsDelta) scriptArgs(now time.Time) []any {
	args := []any{"0", "", "0"}
	if h.counters[fieldDelivered] > 0 {
		args[0] = "1"
	}
	if h.lastFailure.err != nil {
		// How long ago, since the clocks of nodes differ and Redis has one.
		args[1], args[2] = truncate(h.lastFailure.err.Error(), maxErrorBytes), max(now.Sub(h.lastFailure.failedAt).Milliseconds(), 0)
	}
	for field, n := range h.counters {
		args = append(args, field, n)
	}
	return args
}

// addStats adds what happened to the sinks' figures. What it could not tell is told with the next.
func (s *Store) addStats(ctx context.Context, pipelines []*Pipeline) error {
	var told []*statsBuffer
	var taken []statsDelta
	var replies []*redis.Cmd
	// EVAL and not EVALSHA: a pipeline cannot fall back when a restarted Redis has forgotten the script.
	_, err := s.client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for _, p := range pipelines {
			h := p.stats.drain()
			if len(h.counters) == 0 && h.lastFailure.err == nil {
				continue
			}
			told, taken = append(told, &p.stats), append(taken, h)
			replies = append(replies, pipe.Eval(ctx, tallySource, []string{s.keys.SinkStats(p.opts.Name)}, h.scriptArgs(p.opts.Now())...))
		}
		return nil
	})
	for i, reply := range replies {
		if reply.Err() != nil {
			told[i].restore(taken[i])
		}
	}
	if err != nil {
		return fmt.Errorf("add to the figures of sinks: %w", err)
	}
	return nil
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
	return r.o.Store.addStats(ctx, r.pipelines())
}

func (r *RetryScheduler) writeStats(ctx context.Context, pipelines []*Pipeline, force bool) {
	ctx, cancel := context.WithTimeout(ctx, pollTimeout)
	defer cancel()
	if err := r.o.Store.addStats(ctx, pipelines); err != nil {
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
func (p *Pipeline) Dropped(n int64) { p.stats.add(fieldDropped, n) }

// InFlight is how many attempts are being made on this node now.
func (p *Pipeline) InFlight() int64 { return p.attempts.running.Load() }

// decode takes over the fields of a sink's figures.
func (f *SinkStats) decode(fields map[string]string) {
	f.LastError = fields[fieldLastError]
	for field, text := range fields {
		if field == fieldLastError {
			continue // which may look like a number
		}
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			continue
		}
		switch reason, failed := strings.CutPrefix(field, fieldFailed); {
		case field == fieldDelivered:
			f.Delivered = n
		case field == fieldRetried:
			f.Retried = n
		case field == fieldDropped:
			f.Dropped = n
		case field == fieldLastSuccess:
			f.LastSuccess = time.UnixMilli(n).UTC()
		case field == fieldLastErrorAt:
			f.LastErrorAt = time.UnixMilli(n).UTC()
		case failed:
			if f.Failed == nil {
				f.Failed = make(map[string]int64)
			}
			f.Failed[reason] = n
		}
	}
}
