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

// maxNoteBytes is the maximum size of the note of a step.
const maxNoteBytes = 64 << 10

var errDriverStalled = errors.New("the driver made no progress")

// callDriver calls the driver once and stores the progress that it reports. It returns the error of the driver, or
// the reason why the call was stopped. A driver without progress for StallTimeout is stopped, and the outcome of
// the migration is unknown. If the job is canceled, the call is stopped and callDriver returns errCanceled.
func (j *jobRunner) callDriver(ctx context.Context) error {
	driverCtx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stall := time.AfterFunc(j.worker.o.StallTimeout, func() { cancel(errDriverStalled) })
	defer stall.Stop()
	buffer := newProgressBuffer(j.job, func() { stall.Reset(j.worker.o.StallTimeout) })
	done := make(chan error, 1)
	m := j.job.toMigration()
	go func() { done <- j.worker.o.Driver.Migrate(driverCtx, m, buffer.add) }()
	canceled := j.canceled
	if j.job.undo {
		canceled = nil
	}
	tick := time.NewTicker(j.worker.timings.progressInterval)
	defer tick.Stop()
	for {
		select {
		case err := <-done:
			if ctx.Err() == nil {
				_ = j.saveProgress(ctx, buffer) // the final state is stored even if this fails
			}
			if !errors.Is(err, context.Canceled) && !relay.IsIndeterminate(err) {
				return err
			}
			switch cause := context.Cause(driverCtx); {
			case errors.Is(cause, errCanceled):
				return errCanceled
			case errors.Is(cause, errDriverStalled):
				return relay.Indeterminate(fmt.Errorf("the driver made no progress for %s and was stopped "+
					"(migration.stall_timeout): %w",
					j.worker.o.StallTimeout, err))
			}
			return err
		case <-canceled:
			cancel(errCanceled)
			canceled = nil
		case <-buffer.flushNow:
		case <-tick.C:
		}
		if err := j.saveProgress(ctx, buffer); err != nil {
			cancel(err)
			driverErr := <-done
			j.log.Info("driver call was stopped", "reason", err, "driver_error", driverErr)
			// Without an error, the migration was completed before the stop. finishJob checks that this worker still
			// holds the job.
			if driverErr == nil {
				return nil
			}
			return err
		}
	}
}

// saveProgress stores the reported progress together with its events.
func (j *jobRunner) saveProgress(ctx context.Context, r *progressBuffer) error {
	var u jobUpdate
	e := j.newEvents()
	for _, p := range r.drain() {
		text, err := encodeProgress(p)
		if err != nil {
			j.log.Error("could not encode migration progress", "error", err)
			continue
		}
		j.job.Progress[p.Step] = p
		u.fields = append(u.fields, stepField+p.Step, text)
		for _, s := range j.job.Steps {
			if s.ID == p.Step {
				e.addTask(j.job.taskView(s, false))
			}
		}
	}
	if len(u.fields) == 0 {
		return nil
	}
	u.events = e.notifications
	return j.writeUpdate(ctx, u)
}

// progressBuffer collects reports of the driver until they are stored.
type progressBuffer struct {
	flushNow   chan struct{} // signals that a step has started or completed
	onProgress func()        // called for each report with new content

	mu       sync.Mutex
	reported map[string]reportedProgress // by step
	order    []string
	pending  map[string]relay.Progress
}

// reportedProgress is the reported state of a step. It is used to detect duplicate and urgent reports.
type reportedProgress struct {
	started, completed bool // in any report
	last               relay.Progress
}

func (r *reportedProgress) isDuplicate(p relay.Progress) bool {
	return r.started && r.last.Completed == p.Completed && r.last.Bytes == p.Bytes && r.last.Total == p.Total &&
		bytes.Equal(r.last.Note, p.Note)
}

func newProgressBuffer(j *job, onProgress func()) *progressBuffer {
	r := &progressBuffer{
		flushNow: make(chan struct{}, 1), onProgress: onProgress, reported: make(map[string]reportedProgress),
		pending: make(map[string]relay.Progress),
	}
	for _, s := range j.Steps {
		p, started := j.Progress[s.ID]
		r.reported[s.ID] = reportedProgress{started, p.Completed, p}
	}
	return r
}

// add records a report of the driver. It ignores unknown steps.
func (b *progressBuffer) add(p relay.Progress) {
	if p.Time.IsZero() {
		p.Time = time.Now().UTC()
	}
	if len(p.Note) > maxNoteBytes {
		p.Note = nil
	}
	p.Bytes, p.Total = max(0, p.Bytes), max(0, p.Total)
	b.mu.Lock()
	before, known := b.reported[p.Step]
	if known {
		if _, isPending := b.pending[p.Step]; !isPending {
			b.order = append(b.order, p.Step)
		}
		b.pending[p.Step], b.reported[p.Step] = p, reportedProgress{true, before.completed || p.Completed, p}
		if !before.isDuplicate(p) {
			b.onProgress()
		}
	}
	b.mu.Unlock()
	if known && (!before.started || p.Completed && !before.completed) {
		select {
		case b.flushNow <- struct{}{}:
		default:
		}
	}
}

// drain returns the latest report of each step, in order of arrival, and clears the buffer.
func (b *progressBuffer) drain() []relay.Progress {
	b.mu.Lock()
	defer b.mu.Unlock()
	list := make([]relay.Progress, len(b.order))
	for i, step := range b.order {
		list[i] = b.pending[step]
	}
	b.order = nil
	clear(b.pending)
	return list
}
