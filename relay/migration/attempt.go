package migration

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/hubrelay/hubrelay/relay"
)

// maxNote bounds what a driver notes of a step, in bytes.
const maxNote = 64 << 10

var errStalled = errors.New("the driver gets no further")

// attempt calls the driver once, and stores what it reports meanwhile. The error is the driver's, or says why its call
// was ended. A driver that gets no further for StallTimeout is stopped, and has left the migration unsettled.
func (h *hand) attempt(ctx context.Context) error {
	driving, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stall := time.AfterFunc(h.w.o.StallTimeout, func() { cancel(errStalled) })
	defer stall.Stop()
	reports := newReports(h.j, func() { stall.Reset(h.w.o.StallTimeout) })
	done := make(chan error, 1)
	m := h.j.migration()
	go func() { done <- h.w.o.Driver.Migrate(driving, m, reports.take) }()
	tick := time.NewTicker(h.w.pace.tell)
	defer tick.Stop()
	for {
		select {
		case err := <-done:
			if ctx.Err() == nil {
				_ = h.tell(ctx, reports) // where that fails, the end is told all the same
			}
			if errors.Is(context.Cause(driving), errStalled) && (errors.Is(err, context.Canceled) || relay.IsUnsettled(err)) {
				return relay.Unsettled(fmt.Errorf("the driver got no further within %s and was stopped (migration.stall_timeout): %w",
					h.w.o.StallTimeout, err))
			}
			return err
		case <-reports.urgent:
		case <-tick.C:
		}
		if err := h.tell(ctx, reports); err != nil {
			cancel(err)
			answer := <-done
			h.log.Info("a call of the driver was ended", "reason", err, "answer", answer)
			if answer == nil { // it was too far to be ended; end sees to it that the job is still ours
				return nil
			}
			return err
		}
	}
}

// tell stores the progress that was reported, and tells of it.
func (h *hand) tell(ctx context.Context, r *reports) error {
	var u update
	e := h.events()
	for _, p := range r.news() {
		text, err := encodeProgress(p)
		if err != nil {
			h.log.Error("the progress of a migration cannot be stored", "error", err)
			continue
		}
		h.j.Progress[p.Step] = p
		u.fields = append(u.fields, stepField+p.Step, text)
		for _, s := range h.j.Steps {
			if s.ID == p.Step {
				e.step(h.j.task(s, false))
			}
		}
	}
	if len(u.fields) == 0 {
		return nil
	}
	u.events = e.list
	return h.apply(ctx, u)
}

// reports is what a driver has reported and nobody has stored yet.
type reports struct {
	urgent chan struct{} // holds one where a step has begun or is done
	moved  func()        // called for each report that says something new

	mu    sync.Mutex
	known map[string]told // the driver's steps
	order []string
	fresh map[string]relay.Progress
}

// told is what was reported of a step: what comes again is neither urgent nor news.
type told struct {
	begun, completed bool // at any time
	last             relay.Progress
}

func (t *told) repeats(p relay.Progress) bool {
	return t.begun && t.last.Completed == p.Completed && t.last.Bytes == p.Bytes && t.last.Total == p.Total && bytes.Equal(t.last.Note, p.Note)
}

func newReports(j *job, moved func()) *reports {
	r := &reports{urgent: make(chan struct{}, 1), moved: moved, known: make(map[string]told), fresh: make(map[string]relay.Progress)}
	for _, s := range j.Steps {
		p, begun := j.Progress[s.ID]
		r.known[s.ID] = told{begun, p.Completed, p}
	}
	return r
}

// take takes a report of the driver. One of a step that the driver did not name is worth nothing.
func (r *reports) take(p relay.Progress) {
	if p.Time.IsZero() {
		p.Time = time.Now().UTC()
	}
	if len(p.Note) > maxNote {
		p.Note = nil
	}
	p.Bytes, p.Total = max(0, p.Bytes), max(0, p.Total)
	r.mu.Lock()
	before, known := r.known[p.Step]
	if known {
		if _, waits := r.fresh[p.Step]; !waits {
			r.order = append(r.order, p.Step)
		}
		r.fresh[p.Step], r.known[p.Step] = p, told{true, before.completed || p.Completed, p}
		if !before.repeats(p) {
			r.moved()
		}
	}
	r.mu.Unlock()
	if known && (!before.begun || p.Completed && !before.completed) {
		select {
		case r.urgent <- struct{}{}:
		default:
		}
	}
}

// news returns the latest report of each step that has one, in the order in which they came.
func (r *reports) news() []relay.Progress {
	r.mu.Lock()
	defer r.mu.Unlock()
	list := make([]relay.Progress, len(r.order))
	for i, step := range r.order {
		list[i] = r.fresh[step]
	}
	r.order = nil
	clear(r.fresh)
	return list
}
