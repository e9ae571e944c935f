package deliver

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

//go:embed scripts/tally.lua
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

// tally is what happened on this node since Redis was told: figures that outlive the node and count for all of them
// cost one write a second.
type tally struct {
	delivered, retried atomic.Int64

	mu     sync.Mutex
	others map[string]int64 // by field
	last   failure
}

// failure is what an attempt failed by, and when that was; the zero value is none.
type failure struct {
	err error
	at  time.Time
}

// happened is what a tally held.
type happened struct {
	figures map[string]int64 // by field
	last    failure
}

// count takes in one attempt that ended at some time; f.err is nil where it delivered.
func (t *tally) count(attempt int, f failure) {
	if attempt > 1 {
		t.retried.Add(1)
	}
	if f.err == nil {
		t.delivered.Add(1)
		return
	}
	t.add(fieldFailed+FailureReason(f.err), 1)
	t.note(f)
}

// note remembers a failure unless a later one is known.
func (t *tally) note(f failure) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !f.at.Before(t.last.at) {
		t.last = f
	}
}

func (t *tally) add(field string, n int64) {
	switch field {
	case fieldDelivered:
		t.delivered.Add(n)
	case fieldRetried:
		t.retried.Add(n)
	default:
		t.mu.Lock()
		if t.others == nil {
			t.others = make(map[string]int64)
		}
		t.others[field] += n
		t.mu.Unlock()
	}
}

// take returns what there is and begins anew; it is empty where nothing happened.
func (t *tally) take() happened {
	t.mu.Lock()
	all, last := t.others, t.last
	t.others, t.last = nil, failure{}
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
	return happened{all, last}
}

// giveBack takes in again what could not be told.
func (t *tally) giveBack(h happened) {
	for field, n := range h.figures {
		t.add(field, n)
	}
	if h.last.err != nil {
		t.note(h.last)
	}
}

// told is h as the script takes it.
func (h *happened) told(now time.Time) []any {
	args := []any{"0", "", "0"}
	if h.figures[fieldDelivered] > 0 {
		args[0] = "1"
	}
	if h.last.err != nil {
		// How long ago, since the clocks of nodes differ and Redis has one.
		args[1], args[2] = clip(h.last.err.Error(), keptError), max(now.Sub(h.last.at).Milliseconds(), 0)
	}
	for field, n := range h.figures {
		args = append(args, field, n)
	}
	return args
}

// tell adds what happened to the sinks' figures. What it could not tell is told with the next.
func (s *Store) tell(ctx context.Context, pipelines []*Pipeline) error {
	var told []*tally
	var taken []happened
	var replies []*redis.Cmd
	// EVAL and not EVALSHA: a pipeline cannot fall back when a restarted Redis has forgotten the script.
	_, err := s.client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for _, p := range pipelines {
			h := p.tally.take()
			if len(h.figures) == 0 && h.last.err == nil {
				continue
			}
			told, taken = append(told, &p.tally), append(taken, h)
			replies = append(replies, pipe.Eval(ctx, tallySource, []string{s.keys.Figures(p.o.Name)}, h.told(p.o.Now())...))
		}
		return nil
	})
	for i, reply := range replies {
		if reply.Err() != nil {
			told[i].giveBack(taken[i])
		}
	}
	if err != nil {
		return fmt.Errorf("add to the figures of sinks: %w", err)
	}
	return nil
}

// tell stores what happened since it was stored last, and tells other sinks about dead letters; about those too that
// were to wait where force is set.
func (r *Retries) tell(ctx context.Context, force bool) { r.report(ctx, r.pipelines(), force) }

func (r *Retries) pipelines() []*Pipeline {
	r.mu.Lock()
	defer r.mu.Unlock()
	pipelines := make([]*Pipeline, 0, len(r.sinks))
	for _, d := range r.sinks {
		pipelines = append(pipelines, d.p)
	}
	return pipelines
}

// Tell stores the figures of what has happened on this node, which Run does every second, for whoever is about to read them. It
// may be called concurrently with everything else; after an error Run tells them.
func (r *Retries) Tell(ctx context.Context) error { return r.o.Store.tell(ctx, r.pipelines()) }

func (r *Retries) report(ctx context.Context, pipelines []*Pipeline, force bool) {
	ctx, cancel := context.WithTimeout(ctx, lookTime)
	defer cancel()
	if err := r.o.Store.tell(ctx, pipelines); err != nil {
		if ctx.Err() == nil {
			r.o.Log.Warn("cannot store the figures of sinks; trying again soon", "error", err)
		}
		return
	}
	for _, p := range pipelines {
		p.tellDeaths(ctx, force)
	}
}

// Finish stores and tells what Run, which does so every second, has left over. It is for whoever has ended all that
// delivers.
func (r *Retries) Finish(ctx context.Context) { r.tell(context.WithoutCancel(ctx), true) }

// Dropped counts notifications that left the sink's full queue undelivered, in its figures.
func (p *Pipeline) Dropped(n int64) { p.tally.add(fieldDropped, n) }

// InFlight is how many attempts are being made on this node now.
func (p *Pipeline) InFlight() int64 { return p.attempts.running.Load() }

// read takes over the fields of a sink's figures.
func (f *Figures) read(fields map[string]string) {
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
