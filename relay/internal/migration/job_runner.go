package migration

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/hubrelay/hubrelay/internal/await"
	"github.com/hubrelay/hubrelay/relay"
)

const (
	// maxDriverFailures is the number of indeterminate outcomes after which the migration is rolled back.
	maxDriverFailures = 3
	// maxError is the maximum length of a driver's error text, in bytes.
	maxError = 1 << 10
)

var (
	errJobLeaseLost = errors.New("redis was unreachable, so another worker may hold the job")
	errHigherLease  = errors.New("the driver has seen a higher lease")
	errRequeued     = errors.New("older jobs come first")
	errNoServer     = errors.New("the inventory file of this node must define both servers until the migration " +
		"has ended")
	errDriverStuck = errors.New("run migration: no progress on this node")
)

// jobRunner runs a job that the worker has claimed.
type jobRunner struct {
	worker   *Worker
	job      *job
	log      *slog.Logger
	writeSeq int
	// hasSlot is set while the job holds its server slots.
	hasSlot atomic.Bool
	// canceled is closed when a heartbeat reports that the job was canceled.
	canceled chan struct{}
}

func newJobRunner(w *Worker, j *job) *jobRunner {
	h := &jobRunner{
		worker: w, job: j, log: w.o.Log.With("job_id", j.ID, "instance_id", j.Instance), canceled: make(chan struct{}),
	}
	if j.canceled {
		h.log.Info("migration was canceled")
		close(h.canceled)
	}
	return h
}

func (h *jobRunner) isCanceled() bool {
	select {
	case <-h.canceled:
		return true
	default:
		return false
	}
}

// runJob runs the job until it ends, ctx ends or another worker takes over.
func (h *jobRunner) runJob(ctx context.Context) {
	workCtx, cancel := context.WithCancelCause(ctx)
	heartbeatDone := make(chan struct{})
	go func() {
		defer close(heartbeatDone)
		h.heartbeatLoop(workCtx, cancel)
	}()
	err := h.advanceJob(workCtx)
	cancel(nil)
	<-heartbeatDone
	finalCtx, stop := context.WithTimeout(context.WithoutCancel(ctx), finalWriteTimeout)
	defer stop()
	switch {
	case err == nil:
		h.worker.o.Observer.JobEnded(h.job.State, time.Since(h.job.queuedLocal))
		h.log.Info("migration ended", "state", string(h.job.State), "error", h.job.Error,
			"source_server", h.job.Source, "destination_server", h.job.Destination)
	case errors.Is(err, errJobMissing):
		h.rollBackLostJob(ctx)
	case errors.Is(err, errJobEnded):
		h.log.Info("migration was ended by a cancellation or by another worker")
	case errors.Is(err, errSuperseded):
		h.log.Warn("another worker has taken over the migration")
		return // the other worker owns the server slots now
	case errors.Is(err, errHigherLease):
		// Without heartbeats, a worker claims the job again later, with a higher lease.
		h.log.Warn("left migration to another worker", "error", err)
	case errors.Is(err, errRequeued):
	case errors.Is(err, errNoServer):
		h.log.Error("migration waits for another node", "source_server", h.job.Source,
			"destination_server", h.job.Destination, "reason", err)
		h.handOver(finalCtx)
	default:
		h.log.Info("released migration for another worker", "reason", err)
		h.handOver(finalCtx)
	}
	if err := h.worker.store.releaseServerSlot(finalCtx, h.job.ID); err != nil {
		h.log.Warn("could not release server slots", "error", err)
	}
}

// handOver makes the job available to other workers immediately.
func (h *jobRunner) handOver(ctx context.Context) {
	if _, err := h.worker.store.sendHeartbeat(ctx, h.job, h.worker.o.Name, handoverIdleTime); err != nil &&
		!errors.Is(err, errSuperseded) {
		h.log.Warn("could not release migration", "error", err)
	}
}

// rollBackLostJob moves the instance back after Redis has lost the running job. Only this process still has the data of
// the job, and the instance may be stopped. If a newer job is already running, the driver rejects the call.
func (h *jobRunner) rollBackLostJob(ctx context.Context) {
	if !h.hasSlot.Load() {
		h.log.Error("Redis has lost a waiting migration")
		return
	}
	h.log.Error("rolling back a running migration that Redis has lost", "server", h.job.Source)
	m := h.job.toMigration()
	m.Undo = true
	for n := 1; ; n++ {
		err := h.worker.o.Driver.Migrate(ctx, m, func(relay.Progress) {})
		switch {
		case err == nil:
			// The inventory is now wrong. The operator must correct it.
			h.log.Error("lost migration was completed instead of rolled back", "server", h.job.Destination)
			return
		case !relay.IsIndeterminate(err):
			h.log.Warn("rollback of a lost migration ended", "driver_error", err)
			return
		}
		h.log.Error("rollback attempt failed", "error", err)
		if !await.Duration(ctx, h.worker.timings.retryWait(n)) {
			return
		}
	}
}

// heartbeatLoop sends heartbeats. It calls cancel if another worker may hold the job, and closes h.canceled if the job was
// canceled.
func (h *jobRunner) heartbeatLoop(ctx context.Context, cancel context.CancelCauseFunc) {
	lastSuccess := time.Now()
	for await.Duration(ctx, h.worker.timings.heartbeatInterval) {
		start := time.Now()
		canceled, err := h.worker.store.sendHeartbeat(ctx, h.job, h.worker.o.Name, 0)
		if canceled && !h.isCanceled() {
			h.log.Info("migration was canceled")
			close(h.canceled)
		}
		if err == nil {
			lastSuccess = start
			if h.hasSlot.Load() {
				_, err = h.acquireServerSlot(ctx)
			}
		}
		switch {
		case ctx.Err() != nil:
			return
		case errors.Is(err, errSuperseded):
			cancel(err)
			return
		case time.Since(lastSuccess) > h.worker.timings.heartbeatTimeout:
			cancel(errJobLeaseLost)
			return
		}
	}
}

func (h *jobRunner) acquireServerSlot(ctx context.Context) (bool, error) {
	return h.worker.store.acquireServerSlot(ctx, h.job, h.worker.o.ServerConcurrency, h.worker.timings.heartbeatTimeout)
}

// advanceJob runs the job and returns nil when it has ended.
func (h *jobRunner) advanceJob(ctx context.Context) error {
	if h.job.isDamaged {
		return h.failDamagedJob(ctx)
	}
	if h.job.State == relay.JobQueued {
		e := h.newEvents().addJobState(topicJobChanged, relay.JobScheduled, "", h.job.Source)
		if err := h.transition(ctx, relay.JobScheduled, e, jobUpdate{}); err != nil {
			return err
		}
	}
	if err := h.waitForServerSlot(ctx); err != nil || h.job.State.IsFinal() {
		return err
	}
	return h.driveMigration(ctx)
}

// failDamagedJob ends a job whose spec cannot be read.
func (h *jobRunner) failDamagedJob(ctx context.Context) error {
	text, err := h.job.encode()
	if err != nil {
		return err
	}
	if err := h.writeUpdate(ctx, jobUpdate{fields: []string{"order", text}}); err != nil {
		return err
	}
	return h.finishJob(
		ctx, relay.JobError,
		"the stored job was damaged; check which server the instance is on, and request the migration again", "",
		h.newEvents(),
	)
}

// waitForServerSlot waits for the server slots and marks the job as running. If the wait exceeds ExpireAfter, it ends
// the job.
func (h *jobRunner) waitForServerSlot(ctx context.Context) error {
	h.worker.setQueuedAt(h.job.ID, h.job.Queued)
	for start := time.Now(); ; {
		if h.job.State == relay.JobScheduled && time.Since(h.job.queuedLocal) > h.worker.o.ExpireAfter {
			reason := fmt.Sprintf(
				"no server slot became free within %s; nothing was changed, request the migration again",
				h.worker.o.ExpireAfter,
			)
			return h.finishJob(ctx, relay.JobExpired, reason, "", h.newEvents())
		}
		pollCtx, stop := context.WithTimeout(ctx, h.worker.timings.slotPollInterval)
		steps, err := h.worker.driverSteps(pollCtx)
		stop()
		if err == nil && !h.useServers() {
			if err = errNoServer; time.Since(start) > h.worker.timings.heartbeatTimeout {
				return err
			}
		}
		if err == nil {
			acquired, err := h.acquireServerSlot(ctx)
			switch {
			case err == nil && acquired:
				h.worker.setQueuedAt(h.job.ID, time.Time{})
				h.hasSlot.Store(true)
				return h.markRunning(ctx, steps)
			case err == nil && h.job.State == relay.JobScheduled &&
				time.Since(start) > h.worker.timings.heartbeatInterval && h.worker.hasTooManyAhead(h.job.ID):
				err = h.worker.store.requeue(ctx, h.job)
				if err == nil || errors.Is(err, errSuperseded) {
					return cmp.Or(err, errRequeued)
				}
			}
		}
		if !await.Duration(ctx, h.worker.timings.slotPollInterval) {
			return context.Cause(ctx)
		}
	}
}

// useServers copies the settings of the job's servers from this node's inventory file. It reports whether the file
// defines both servers. The settings do not change while this node works on the job.
func (h *jobRunner) useServers() bool {
	h.job.sourceSettings = h.worker.serverSettings(h.job.Source)
	h.job.destinationSettings = h.worker.serverSettings(h.job.Destination)
	return h.job.sourceSettings != nil && h.job.destinationSettings != nil
}

// markRunning stores that the job is running, unless it already is.
func (h *jobRunner) markRunning(ctx context.Context, steps []relay.MigrationStep) error {
	if h.job.State == relay.JobRunning {
		return nil
	}
	text, err := json.Marshal(steps)
	if err != nil {
		return fmt.Errorf("encode the driver's steps: %w", err)
	}
	e := h.newEvents().addJobState(topicJobChanged, relay.JobRunning, "", h.job.Source).
		addInstance(topicInstance, instanceMigrating, "", h.job.Source)
	h.job.Steps = steps
	return h.transition(ctx, relay.JobRunning, e, jobUpdate{fields: []string{"steps", string(text), "started", "@now"}})
}

// driveMigration calls the driver until the outcome is known.
func (h *jobRunner) driveMigration(ctx context.Context) error {
	for {
		if h.isCanceled() && !h.job.undo {
			if err := h.requestUndo(ctx, errCanceled); err != nil {
				return err
			}
		}
		err := h.callDriver(ctx)
		switch {
		case errors.Is(err, errCanceled):
			continue
		case err == nil:
			e := h.newEvents().addInstance(topicInstance, instanceRunning, "", h.job.Destination)
			return h.finishJob(ctx, relay.JobCompleted, "", h.job.Destination, e)
		case errors.Is(err, errSuperseded):
			return err
		case errors.Is(context.Cause(ctx), errSuperseded):
			return context.Cause(ctx)
		case errors.Is(err, relay.ErrSuperseded):
			return errHigherLease
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case !relay.IsIndeterminate(err):
			return h.failJob(ctx, err)
		}
		if err := h.recordIndeterminate(ctx, err); err != nil {
			return err
		}
		if !await.Duration(ctx, h.worker.timings.retryWait(h.job.attempts)) {
			return context.Cause(ctx)
		}
		if h.job.attempts > maxDriverFailures {
			return errDriverStuck
		}
	}
}

// requestUndo stores that the driver must move the instance back, and why.
func (h *jobRunner) requestUndo(ctx context.Context, reason error) error {
	h.job.undo, h.job.Error = true, errorText(reason)
	err := h.writeUpdate(ctx, jobUpdate{fields: []string{"undo", "1", "error", h.job.Error}})
	if err == nil {
		h.log.Info("rolling back the migration", "reason", reason)
	}
	return err
}

// recordIndeterminate stores that the outcome is unknown. After maxDriverFailures such outcomes, it requests an undo.
func (h *jobRunner) recordIndeterminate(ctx context.Context, err error) error {
	h.job.attempts++
	h.log.Error("outcome of driver call is unknown",
		"error", err, "attempt", h.job.attempts, "rolling_back", h.job.undo)
	if !h.job.undo { // The reason of the rollback is more useful than a failure of the rollback itself.
		h.job.Error = errorText(err)
	}
	fields := []string{"attempts", strconv.Itoa(h.job.attempts), "error", h.job.Error}
	if h.job.attempts >= maxDriverFailures {
		h.job.undo = true
		fields = append(fields, "undo", "1")
	}
	return h.writeUpdate(ctx, jobUpdate{fields: fields})
}

func (h *jobRunner) failJob(ctx context.Context, err error) error {
	reason := errorText(err)
	if h.job.undo && h.job.Error != "" {
		h.log.Info("driver has rolled back the migration", "driver_error", err)
		reason = relay.Truncate(h.job.Error, maxError/2) + "; the instance is back on " + h.job.Source
	}
	e := h.newEvents().addInstance(topicInstanceFail, instanceRunning, reason, h.job.Source).
		addInstance(topicInstance, instanceRunning, "", h.job.Source)
	return h.finishJob(ctx, relay.JobError, reason, "", e)
}

// finishJob stores the end of the job. After the end of ctx it continues to retry for finalWriteTimeout, because the
// driver has completed its work.
func (h *jobRunner) finishJob(
	ctx context.Context, state relay.JobState, reason, movedTo string, e *eventBuilder,
) error {
	e.addJobState(topicJobChanged, state, reason, cmp.Or(movedTo, h.job.Source))
	if ctx.Err() != nil && errors.Is(context.Cause(ctx), errSuperseded) {
		return context.Cause(ctx)
	}
	finalCtx, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(finalWriteTimeout, stop) })()
	h.job.Error = reason
	return h.transition(finalCtx, state, e, jobUpdate{
		fields: []string{"error", reason, "completed", "@now"}, isFinal: true, movedTo: movedTo,
	})
}

// transition stores a new state of the job together with its events.
func (h *jobRunner) transition(ctx context.Context, state relay.JobState, e *eventBuilder, u jobUpdate) error {
	if e.err != nil {
		return e.err
	}
	u.fields = append(u.fields, "state", string(state), "changed", "@now")
	u.events = e.notifications
	if err := h.writeUpdate(ctx, u); err != nil {
		return err
	}
	h.job.State = state
	return nil
}

// writeUpdate stores a change. It retries until ctx ends.
func (h *jobRunner) writeUpdate(ctx context.Context, u jobUpdate) error {
	h.writeSeq++
	mark := fmt.Sprintf("%d.%d", h.job.lease, h.writeSeq)
	for wait := 50 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		err := h.worker.store.applyUpdate(ctx, h.job, mark, u)
		if err == nil || errors.Is(err, errSuperseded) {
			return err
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		h.log.Warn("could not store job update", "error", err)
		if !await.Duration(ctx, wait) {
			return context.Cause(ctx)
		}
	}
}

func (h *jobRunner) newEvents() *eventBuilder {
	return &eventBuilder{job: &h.job.jobSpec, newID: h.worker.o.NewID}
}

// errorText returns the text of an error as valid UTF-8, truncated to maxError.
func errorText(err error) string {
	return relay.Truncate(strings.ToValidUTF8(strings.TrimSpace(err.Error()), "�"), maxError)
}
