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

// maxNoteBytes bounds what a driver notes of a step, in bytes.
const maxNoteBytes = 64 << 10

var errDriverStalled = errors.New("the driver gets no further")

// callDriver calls the driver once, and stores what it reports meanwhile. The error is the driver's, or says why its call
// was ended. A driver that gets no further for StallTimeout is stopped, and has left the migration unsettled.
func (h *jobRunner) callDriver(ctx context.Context) error {
	driving, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stall := time.AfterFunc(h.worker.o.StallTimeout, func() { cancel(errDriverStalled) })
	defer stall.Stop()
	reports := newProgressBuffer(h.job, func() { stall.Reset(h.worker.o.StallTimeout) })
	done := make(chan error, 1)
	m := h.job.toMigration()
	go func() { done <- h.worker.o.Driver.Migrate(driving, m, reports.add) }()
	tick := time.NewTicker(h.worker.timings.progressInterval)
	defer tick.Stop()
	for {
		select {
		case err := <-done:
			if ctx.Err() == nil {
				_ = h.saveProgress(ctx, reports) // where that fails, the end is told all the same
			}
			if errors.Is(context.Cause(driving), errDriverStalled) && (errors.Is(err, context.Canceled) || relay.IsIndeterminate(err)) {
				return relay.Indeterminate(fmt.Errorf("the driver got no further within %s and was stopped (migration.stall_timeout): %w",
					h.worker.o.StallTimeout, err))
			}
			return err
		case <-reports.flushNow:
		case <-tick.C:
		}
		if err := h.saveProgress(ctx, reports); err != nil {
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

// saveProgress stores the progress that was reported, and tells of it.
func (h *jobRunner) saveProgress(ctx context.Context, r *progressBuffer) error {
	var u jobUpdate
	e := h.newEvents()
	for _, p := range r.drain() {
		text, err := encodeProgress(p)
		if err != nil {
			h.log.Error("the progress of a migration cannot be stored", "error", err)
			continue
		}
		h.job.Progress[p.Step] = p
		u.fields = append(u.fields, stepField+p.Step, text)
		for _, s := range h.job.Steps {
			if s.ID == p.Step {
				e.addTask(h.job.taskView(s, false))
			}
		}
	}
	if len(u.fields) == 0 {
		return nil
	}
	u.events = e.notifications
	return h.writeUpdate(ctx, u)
}

// progressBuffer is what a driver has reported and nobody has stored yet.
type progressBuffer struct {
	flushNow   chan struct{} // holds one where a step has begun or is done
	onProgress func()        // called for each report that says something new

	mu       sync.Mutex
	reported map[string]reportedProgress // the driver's steps
	order    []string
	pending  map[string]relay.Progress
}

// reportedProgress is what was reported of a step: what comes again is neither urgent nor news.
type reportedProgress struct {
	started, completed bool // at any time
	last               relay.Progress
}

func (t *reportedProgress) isDuplicate(p relay.Progress) bool {
	return t.started && t.last.Completed == p.Completed && t.last.Bytes == p.Bytes && t.last.Total == p.Total && bytes.Equal(t.last.Note, p.Note)
}

func newProgressBuffer(j *job, moved func()) *progressBuffer {
	r := &progressBuffer{flushNow: make(chan struct{}, 1), onProgress: moved, reported: make(map[string]reportedProgress), pending: make(map[string]relay.Progress)}
	for _, s := range j.Steps {
		p, begun := j.Progress[s.ID]
		r.reported[s.ID] = reportedProgress{begun, p.Completed, p}
	}
	return r
}

// add takes a report of the driver. One of a step that the driver did not name is worth nothing.
func (r *progressBuffer) add(p relay.Progress) {
	if p.Time.IsZero() {
		p.Time = time.Now().UTC()
	}
	if len(p.Note) > maxNoteBytes {
		p.Note = nil
	}
	p.Bytes, p.Total = max(0, p.Bytes), max(0, p.Total)
	r.mu.Lock()
	before, known := r.reported[p.Step]
	if known {
		if _, waits := r.pending[p.Step]; !waits {
			r.order = append(r.order, p.Step)
		}
		r.pending[p.Step], r.reported[p.Step] = p, reportedProgress{true, before.completed || p.Completed, p}
		if !before.isDuplicate(p) {
			r.onProgress()
		}
	}
	r.mu.Unlock()
	if known && (!before.started || p.Completed && !before.completed) {
		select {
		case r.flushNow <- struct{}{}:
		default:
		}
	}
}

// drain returns the latest report of each step that has one, in the order in which they came.
func (r *progressBuffer) drain() []relay.Progress {
	r.mu.Lock()
	defer r.mu.Unlock()
	list := make([]relay.Progress, len(r.order))
	for i, step := range r.order {
		list[i] = r.pending[step]
	}
	r.order = nil
	clear(r.pending)
	return list
}
