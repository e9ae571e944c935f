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
	// steps contains the JSON of the steps, as a string, while the job runs.
	steps atomic.Value
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

func (j *jobRunner) isCanceled() bool {
	select {
	case <-j.canceled:
		return true
	default:
		return false
	}
}

// runJob runs the job until it ends, ctx ends or another worker takes over.
func (j *jobRunner) runJob(ctx context.Context) {
	workCtx, cancel := context.WithCancelCause(ctx)
	heartbeatDone := make(chan struct{})
	go func() {
		defer close(heartbeatDone)
		j.heartbeatLoop(workCtx, cancel)
	}()
	err := j.advanceJob(workCtx)
	cancel(nil)
	<-heartbeatDone
	switch {
	case err == nil:
		j.worker.o.Observer.JobEnded(j.job.State, time.Since(j.job.queuedLocal))
		j.log.Info("migration ended", "state", string(j.job.State), "error", j.job.Error,
			"source_server_id", j.job.Source, "destination_server_id", j.job.Destination)
	case errors.Is(err, errJobMissing), errors.Is(err, errStartLost) && j.job.State == relay.JobRunning:
		j.rollBackLostJob(ctx)
	case errors.Is(err, errJobEnded), errors.Is(err, errStartLost):
		j.log.Info("migration was ended by a cancellation or by another node")
	case errors.Is(err, errSuperseded):
		j.log.Warn("another node has taken over the migration")
		return // the other worker owns the server slots now
	case errors.Is(err, errHigherLease):
		// Without heartbeats, a worker claims the job again later, with a higher lease.
		j.log.Warn("left migration to another node", "error", err)
	case errors.Is(err, errRequeued):
	case errors.Is(err, errNoServer):
		j.log.Error("migration waits for another node", "source_server_id", j.job.Source,
			"destination_server_id", j.job.Destination, "reason", err)
		j.handOver(ctx)
	default:
		j.log.Info("released migration for another node", "reason", err)
		j.handOver(ctx)
	}
	finalCtx, stop := context.WithTimeout(context.WithoutCancel(ctx), finalWriteTimeout)
	defer stop()
	j.releaseServerSlot(finalCtx)
}

// handOver makes the job available to other workers immediately, also after the end of ctx.
func (j *jobRunner) handOver(ctx context.Context) {
	ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), finalWriteTimeout)
	defer stop()
	if _, err := j.worker.store.sendHeartbeat(ctx, j.job, j.worker.o.Name, j.runningSteps(), handoverIdleTime); err != nil &&
		!errors.Is(err, errSuperseded) {
		j.log.Warn("could not release migration", "error", err)
	}
}

// runningSteps returns the JSON of the steps, or "" if the job does not run yet.
func (j *jobRunner) runningSteps() string {
	steps, _ := j.steps.Load().(string)
	return steps
}

// rollBackLostJob moves the instance back after Redis has lost the running job or its start. Only this process still has the data of
// the job, and the instance may be stopped. If a newer job is already running, the driver rejects the call.
func (j *jobRunner) rollBackLostJob(ctx context.Context) {
	if j.job.State != relay.JobRunning {
		j.log.Error("Redis has lost a waiting migration")
		return
	}
	j.log.Error("rolling back a running migration that Redis has lost", "source_server_id", j.job.Source)
	m := j.job.toMigration()
	m.Undo = true
	for n := 1; ; n++ {
		err := j.worker.o.Driver.Migrate(ctx, m, func(relay.Progress) {})
		switch {
		case err == nil:
			// The inventory is now wrong. The operator must correct it.
			j.log.Error("lost migration was completed instead of rolled back", "destination_server_id", j.job.Destination)
			return
		case !relay.IsIndeterminate(err):
			j.log.Warn("rollback of a lost migration ended", "driver_error", err)
			return
		}
		j.log.Error("rollback attempt failed", "error", err)
		if !await.Duration(ctx, j.worker.timings.retryWait(n)) {
			return
		}
	}
}

// heartbeatLoop sends heartbeats. It calls cancel if another worker may hold the job, and closes h.canceled if the job was
// canceled.
func (j *jobRunner) heartbeatLoop(ctx context.Context, cancel context.CancelCauseFunc) {
	lastSuccess := time.Now()
	for await.Duration(ctx, j.worker.timings.heartbeatInterval) {
		start := time.Now()
		canceled, err := j.worker.store.sendHeartbeat(ctx, j.job, j.worker.o.Name, j.runningSteps(), 0)
		if canceled && !j.isCanceled() {
			j.log.Info("migration was canceled")
			close(j.canceled)
		}
		if err == nil {
			lastSuccess = start
			if j.hasSlot.Load() {
				_, err = j.acquireServerSlot(ctx)
			}
		}
		switch {
		case ctx.Err() != nil:
			return
		case errors.Is(err, errSuperseded):
			cancel(err)
			return
		case time.Since(lastSuccess) > j.worker.timings.heartbeatTimeout:
			cancel(errJobLeaseLost)
			return
		}
	}
}

// advanceJob runs the job and returns nil when it has ended.
func (j *jobRunner) advanceJob(ctx context.Context) error {
	if j.job.isDamaged {
		return j.failDamagedJob(ctx)
	}
	if j.job.State == relay.JobQueued {
		e := j.newEvents().addJobState(topicJobChanged, relay.JobScheduled, "", j.job.Source)
		if err := j.transition(ctx, relay.JobScheduled, e, jobUpdate{}); err != nil {
			return err
		}
	}
	if err := j.waitForServerSlot(ctx); err != nil || j.job.State.IsFinal() {
		return err
	}
	return j.driveMigration(ctx)
}

// failDamagedJob ends a job whose spec cannot be read.
func (j *jobRunner) failDamagedJob(ctx context.Context) error {
	text, err := j.job.encode()
	if err != nil {
		return err
	}
	if err := j.writeUpdate(ctx, jobUpdate{fields: []string{"order", text}}); err != nil {
		return err
	}
	return j.finishJob(
		ctx, relay.JobError,
		"the stored job was damaged; check which server the instance is on, and request the migration again", "",
		j.newEvents(),
	)
}

// markRunning stores that the job is running, and waits for replicas: if a failover loses the start of a job, a cancellation ends
// the job without a rollback. It also waits for a job that is running already, because its previous worker may have been stopped
// before a replica had the start.
func (j *jobRunner) markRunning(ctx context.Context, steps []relay.MigrationStep) error {
	isNew := j.job.State != relay.JobRunning
	if isNew {
		j.job.Steps = steps
	}
	text, err := json.Marshal(j.job.Steps)
	if err != nil {
		return fmt.Errorf("encode the driver's steps: %w", err)
	}
	if isNew {
		e := j.newEvents().addJobState(topicJobChanged, relay.JobRunning, "", j.job.Source).
			addInstance(topicInstance, instanceMigrating, "", j.job.Source)
		err = j.transition(ctx, relay.JobRunning, e, jobUpdate{
			fields: []string{"steps", string(text), "started", "@now"}, isReplicated: true,
		})
	} else {
		err = j.writeUpdate(ctx, jobUpdate{isReplicated: true})
	}
	if err == nil {
		j.steps.Store(string(text))
	}
	return err
}

// driveMigration calls the driver until the outcome is known.
func (j *jobRunner) driveMigration(ctx context.Context) error {
	for postponed := 0; ; {
		if j.isCanceled() && !j.job.undo {
			if err := j.requestUndo(ctx, errCanceled); err != nil {
				return err
			}
		}
		err := j.callDriver(ctx)
		switch {
		case errors.Is(err, errCanceled):
			continue
		case err == nil:
			e := j.newEvents().addInstance(topicInstance, instanceRunning, "", j.job.Destination)
			return j.finishJob(ctx, relay.JobCompleted, "", j.job.Destination, e)
		case errors.Is(err, errSuperseded):
			return err
		case errors.Is(context.Cause(ctx), errSuperseded):
			return context.Cause(ctx)
		case errors.Is(err, relay.ErrSuperseded):
			return errHigherLease
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case !relay.IsIndeterminate(err):
			return j.failJob(ctx, err)
		}
		if relay.IsPostponed(err) {
			postponed++
		}
		if err := j.recordIndeterminate(ctx, err); err != nil {
			return err
		}
		failures := max(j.job.attempts, postponed)
		isStuck := failures > maxDriverFailures
		if isStuck {
			j.releaseServerSlot(ctx)
		}
		if !await.Duration(ctx, j.worker.timings.retryWait(failures)) {
			return context.Cause(ctx)
		}
		if isStuck {
			return errDriverStuck
		}
	}
}

// requestUndo stores that the driver must move the instance back, and why.
func (j *jobRunner) requestUndo(ctx context.Context, reason error) error {
	j.job.undo, j.job.Error = true, errorText(reason)
	err := j.writeUpdate(ctx, jobUpdate{fields: []string{"undo", "1", "error", j.job.Error}})
	if err == nil {
		j.log.Info("rolling back the migration", "reason", reason)
	}
	return err
}

// recordIndeterminate stores that the outcome is unknown. After maxDriverFailures such outcomes, it requests an undo. A call that the
// driver did not get does not count.
func (j *jobRunner) recordIndeterminate(ctx context.Context, err error) error {
	if !relay.IsPostponed(err) {
		j.job.attempts++
	}
	j.log.Error("outcome of driver call is unknown",
		"error", err, "attempt", j.job.attempts, "rolling_back", j.job.undo)
	if !j.job.undo { // The reason of the rollback is more useful than a failure of the rollback itself.
		j.job.Error = errorText(err)
	}
	fields := []string{"attempts", strconv.Itoa(j.job.attempts), "error", j.job.Error}
	if j.job.attempts >= maxDriverFailures {
		j.job.undo = true
		fields = append(fields, "undo", "1")
	}
	return j.writeUpdate(ctx, jobUpdate{fields: fields})
}

func (j *jobRunner) failJob(ctx context.Context, err error) error {
	reason := errorText(err)
	if j.job.undo && j.job.Error != "" {
		j.log.Info("driver has rolled back the migration", "driver_error", err)
		const maxPart = (maxError - len("; ")) / 2
		reason = relay.Truncate(j.job.Error, maxPart) + "; " + relay.Truncate(reason, maxPart)
	}
	e := j.newEvents().addInstance(topicInstanceFail, instanceRunning, reason, j.job.Source).
		addInstance(topicInstance, instanceRunning, "", j.job.Source)
	return j.finishJob(ctx, relay.JobError, reason, "", e)
}

// finishJob stores the end of the job. After the end of ctx it continues to retry for finalWriteTimeout, because the
// driver has completed its work.
func (j *jobRunner) finishJob(
	ctx context.Context, state relay.JobState, reason, movedTo string, e *eventBuilder,
) error {
	e.addJobState(topicJobChanged, state, reason, cmp.Or(movedTo, j.job.Source))
	if ctx.Err() != nil && errors.Is(context.Cause(ctx), errSuperseded) {
		return context.Cause(ctx)
	}
	finalCtx, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(finalWriteTimeout, stop) })()
	j.job.Error = reason
	return j.transition(finalCtx, state, e, jobUpdate{
		fields: []string{"error", reason, "completed", "@now"}, isFinal: true, movedTo: movedTo,
	})
}

// transition stores a new state of the job together with its events.
func (j *jobRunner) transition(ctx context.Context, state relay.JobState, e *eventBuilder, u jobUpdate) error {
	if e.err != nil {
		return e.err
	}
	u.fields = append(u.fields, "state", string(state), "changed", "@now")
	u.events = e.notifications
	if err := j.writeUpdate(ctx, u); err != nil {
		return err
	}
	j.job.State = state
	return nil
}

// writeUpdate stores a change. It retries until ctx ends.
func (j *jobRunner) writeUpdate(ctx context.Context, u jobUpdate) error {
	j.writeSeq++
	mark := fmt.Sprintf("%d.%d", j.job.lease, j.writeSeq)
	for wait := 50 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		err := j.worker.store.applyUpdate(ctx, j.job, mark, u)
		if err == nil || errors.Is(err, errSuperseded) {
			return err
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		j.log.Warn("could not store job update", "error", err)
		if !await.Duration(ctx, wait) {
			return context.Cause(ctx)
		}
	}
}

func (j *jobRunner) newEvents() *eventBuilder {
	return &eventBuilder{job: &j.job.jobSpec, newID: j.worker.o.NewID}
}

// errorText returns the text of an error as valid UTF-8, truncated to maxError.
func errorText(err error) string {
	return relay.Truncate(strings.ToValidUTF8(strings.TrimSpace(err.Error()), "�"), maxError)
}
