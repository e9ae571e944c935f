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
)

// tally is what happened on this node since Redis was told: figures that outlive the node and count for all of them
// cost one write a second.
type tally struct {
	delivered, retried atomic.Int64

	mu     sync.Mutex
	others map[string]int64 // by field
}

// count takes in one attempt; reason is empty where it delivered.
func (t *tally) count(attempt int, reason string) {
	if attempt > 1 {
		t.retried.Add(1)
	}
	if reason == "" {
		t.delivered.Add(1)
		return
	}
	t.add(fieldFailed+reason, 1)
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
func (t *tally) take() map[string]int64 {
	t.mu.Lock()
	all := t.others
	t.others = nil
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
	return all
}

// tell adds what happened to the sinks' figures. What it could not tell is told with the next.
func (s *Store) tell(ctx context.Context, pipelines []*Pipeline) error {
	var told []*tally
	var taken []map[string]int64
	var replies []*redis.Cmd
	// EVAL and not EVALSHA: a pipeline cannot fall back when a restarted Redis has forgotten the script.
	_, err := s.client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for _, p := range pipelines {
			happened := p.tally.take()
			if len(happened) == 0 {
				continue
			}
			args := []any{"0"}
			if happened[fieldDelivered] > 0 {
				args[0] = "1"
			}
			for field, n := range happened {
				args = append(args, field, n)
			}
			told, taken = append(told, &p.tally), append(taken, happened)
			replies = append(replies, pipe.Eval(ctx, tallySource, []string{s.keys.Figures(p.o.Name)}, args...))
		}
		return nil
	})
	for i, reply := range replies {
		if reply.Err() == nil {
			continue
		}
		for field, n := range taken[i] {
			told[i].add(field, n)
		}
	}
	if err != nil {
		return fmt.Errorf("add to the figures of sinks: %w", err)
	}
	return nil
}

// tell stores what happened since it was stored last, and tells other sinks about dead letters; about those too that
// were to wait where force is set.
func (r *Retries) tell(ctx context.Context, force bool) {
	r.mu.Lock()
	pipelines := make([]*Pipeline, 0, len(r.sinks))
	for _, d := range r.sinks {
		pipelines = append(pipelines, d.p)
	}
	r.mu.Unlock()
	r.report(ctx, pipelines, force)
}

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
	for field, text := range fields {
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
		case failed:
			if f.Failed == nil {
				f.Failed = make(map[string]int64)
			}
			f.Failed[reason] = n
		}
	}
}
