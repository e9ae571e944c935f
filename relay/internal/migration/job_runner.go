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

	"github.com/hubrelay/hubrelay/relay"
)

const (
	// maxDriverFailures is how often a driver may leave a migration unsettled before it is asked to undo it.
	maxDriverFailures = 3
	// maxError bounds what a driver says of a failure, in bytes.
	maxError = 1 << 10
)

var (
	errJobLeaseLost = errors.New("redis did not answer for so long that another worker may have taken the job over")
	errHigherLease  = errors.New("the driver has seen a higher lease")
	errRequeued     = errors.New("others come first")
	errNoServer     = errors.New("the inventory file of this node does not define both servers of the migration; put them back until it is over")
	errDriverStuck  = errors.New("the driver gets nowhere here, perhaps it does on another node")
)

// jobRunner is a job that this worker holds.
type jobRunner struct {
	worker   *Worker
	job      *job
	log      *slog.Logger
	writeSeq int
	// hasSlot is set once the job has its servers' turn.
	hasSlot atomic.Bool
}

func newJobRunner(w *Worker, j *job) *jobRunner {
	return &jobRunner{worker: w, job: j, log: w.o.Log.With("job", j.ID, "instance", j.Instance)}
}

// runJob brings the job to an end, or as far as possible until ctx ends or another worker has it.
func (h *jobRunner) runJob(ctx context.Context) {
	working, cancel := context.WithCancelCause(ctx)
	beating := make(chan struct{})
	go func() {
		defer close(beating)
		h.heartbeatLoop(working, cancel)
	}()
	err := h.advanceJob(working)
	cancel(nil)
	<-beating
	last, stop := context.WithTimeout(context.WithoutCancel(ctx), finalWriteTimeout)
	defer stop()
	switch {
	case err == nil:
		h.worker.o.Observer.JobEnded(h.job.State, time.Since(h.job.queuedLocal))
		h.log.Info("a migration is over", "state", string(h.job.State), "error", h.job.Error, "from", h.job.Source, "to", h.job.Destination)
	case errors.Is(err, errJobMissing):
		h.rollBackLostJob(ctx)
	case errors.Is(err, errSuperseded):
		h.log.Warn("another worker has taken a migration over")
		return // its turn is the other's now
	case errors.Is(err, errHigherLease):
		// Left alone it is taken up again in a while, with a higher lease.
		h.log.Warn("a migration is left to another worker", "error", err)
	case errors.Is(err, errRequeued):
	case errors.Is(err, errNoServer):
		h.log.Error("migration waits for another node", "source", h.job.Source, "destination", h.job.Destination, "reason", err)
		h.handOver(last)
	default:
		h.log.Info("a migration is handed over", "reason", err)
		h.handOver(last)
	}
	if err := h.worker.store.releaseServerSlot(last, h.job.ID); err != nil {
		h.log.Warn("cannot give up a turn, it will expire", "error", err)
	}
}

// handOver lets another worker take the job at once.
func (h *jobRunner) handOver(ctx context.Context) {
	if err := h.worker.store.heartbeat(ctx, h.job, h.worker.o.Name, handoverIdleTime); err != nil && !errors.Is(err, errSuperseded) {
		h.log.Warn("cannot hand a migration over; another worker takes it in a while", "error", err)
	}
}

// rollBackLostJob brings the instance back where Redis has lost the job in the middle: nobody else knows of it, and its instance may
// be stopped. Where the job's successor is at work already, the driver refuses.
func (h *jobRunner) rollBackLostJob(ctx context.Context) {
	if !h.hasSlot.Load() {
		h.log.Error("Redis has lost a migration that had not begun; ask for it again")
		return
	}
	h.log.Error("Redis has lost a migration in the middle; its instance is brought back", "to", h.job.Source)
	m := h.job.toMigration()
	m.Undo = true
	for n := 1; ; n++ {
		err := h.worker.o.Driver.Migrate(ctx, m, func(relay.Progress) {})
		switch {
		case err == nil:
			h.log.Error("an instance was too far to be brought back: correct the inventory", "is_on", h.job.Destination)
			return
		case !relay.IsIndeterminate(err):
			h.log.Warn("a migration that Redis has lost is left", "outcome", err)
			return
		}
		h.log.Error("the driver could not bring an instance back; it is called again", "error", err)
		if !relay.Sleep(ctx, h.worker.timings.retryWait(n)) {
			return
		}
	}
}

// heartbeatLoop shows that the job is in hand, and ends the work when it may be in another's.
func (h *jobRunner) heartbeatLoop(ctx context.Context, cancel context.CancelCauseFunc) {
	last := time.Now()
	for relay.Sleep(ctx, h.worker.timings.heartbeatInterval) {
		began := time.Now()
		err := h.worker.store.heartbeat(ctx, h.job, h.worker.o.Name, 0)
		if err == nil {
			last = began
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
		case time.Since(last) > h.worker.timings.heartbeatTimeout:
			cancel(errJobLeaseLost)
			return
		}
	}
}

func (h *jobRunner) acquireServerSlot(ctx context.Context) (bool, error) {
	return h.worker.store.acquireServerSlot(ctx, h.job, h.worker.o.ServerConcurrency, h.worker.timings.heartbeatTimeout)
}

// advanceJob returns nil when the job is over.
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

// failDamagedJob ends a job of which nobody knows any more what it was to do.
func (h *jobRunner) failDamagedJob(ctx context.Context) error {
	text, err := h.job.encode()
	if err != nil {
		return err
	}
	if err := h.writeUpdate(ctx, jobUpdate{fields: []string{"order", text}}); err != nil {
		return err
	}
	return h.finishJob(ctx, relay.JobError, "the record of the job in Redis was damaged; look where the instance is, and ask again", "", h.newEvents())
}

// waitForServerSlot returns when the job may run, and does; or it has expired.
func (h *jobRunner) waitForServerSlot(ctx context.Context) error {
	h.worker.setQueuedAt(h.job.ID, h.job.Queued)
	for began := time.Now(); ; {
		if h.job.State == relay.JobScheduled && time.Since(h.job.queuedLocal) > h.worker.o.ExpireAfter {
			cause := fmt.Sprintf("the servers did not have time for the migration within %s; nothing was touched, ask again", h.worker.o.ExpireAfter)
			return h.finishJob(ctx, relay.JobExpired, cause, "", h.newEvents())
		}
		short, stop := context.WithTimeout(ctx, h.worker.timings.slotPollInterval)
		steps, err := h.worker.driverSteps(short)
		stop()
		if err == nil && !h.useServers() {
			if err = errNoServer; time.Since(began) > h.worker.timings.heartbeatTimeout {
				return err
			}
		}
		if err == nil {
			mine, err := h.acquireServerSlot(ctx)
			switch {
			case err == nil && mine:
				h.worker.setQueuedAt(h.job.ID, time.Time{})
				h.hasSlot.Store(true)
				return h.markRunning(ctx, steps)
			case err == nil && h.job.State == relay.JobScheduled && time.Since(began) > h.worker.timings.heartbeatInterval && h.worker.hasTooManyAhead(h.job.ID):
				err = h.worker.store.requeue(ctx, h.job)
				if err == nil || errors.Is(err, errSuperseded) {
					return cmp.Or(err, errRequeued)
				}
			}
		}
		if !relay.Sleep(ctx, h.worker.timings.slotPollInterval) {
			return context.Cause(ctx)
		}
	}
}

// useServers takes the settings of the job's servers from this node's inventory file, and reports whether it has both. They
// stay what they are until the end of this node's work on the job.
func (h *jobRunner) useServers() bool {
	h.job.sourceSettings, h.job.destinationSettings = h.worker.serverSettings(h.job.Source), h.worker.serverSettings(h.job.Destination)
	return h.job.sourceSettings != nil && h.job.destinationSettings != nil
}

// markRunning tells that the job runs, unless it did so before.
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

// driveMigration calls the driver until the migration is settled.
func (h *jobRunner) driveMigration(ctx context.Context) error {
	for {
		err := h.callDriver(ctx)
		switch {
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
		if !relay.Sleep(ctx, h.worker.timings.retryWait(h.job.attempts)) {
			return context.Cause(ctx)
		}
		if h.job.attempts > maxDriverFailures {
			return errDriverStuck
		}
	}
}

// recordIndeterminate notes that the driver could neither go on nor back. After a few times it shall go back.
func (h *jobRunner) recordIndeterminate(ctx context.Context, err error) error {
	h.job.attempts++
	h.log.Error("the driver left a migration unsettled; it is called again", "error", err, "attempt", h.job.attempts, "undo", h.job.undo)
	if !h.job.undo { // why it is undone is of more use than why that did not succeed at first
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
	cause := errorText(err)
	if h.job.undo && h.job.Error != "" {
		cause = relay.Truncate(h.job.Error, maxError/2) + "; the instance is back on " + h.job.Source
	}
	e := h.newEvents().addInstance(topicInstanceFail, instanceRunning, cause, h.job.Source).
		addInstance(topicInstance, instanceRunning, "", h.job.Source)
	return h.finishJob(ctx, relay.JobError, cause, "", e)
}

// finishJob stores that the job is over. It tries so for a while even where ctx has ended: what the driver has done is done.
func (h *jobRunner) finishJob(ctx context.Context, state relay.JobState, cause, movedTo string, e *eventBuilder) error {
	e.addJobState(topicJobChanged, state, cause, cmp.Or(movedTo, h.job.Source))
	if ctx.Err() != nil && errors.Is(context.Cause(ctx), errSuperseded) {
		return context.Cause(ctx)
	}
	ending, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(finalWriteTimeout, stop) })()
	h.job.Error = cause
	return h.transition(ending, state, e, jobUpdate{fields: []string{"error", cause, "completed", "@now"}, isFinal: true, movedTo: movedTo})
}

// transition brings the job into another state, together with its events.
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

// writeUpdate makes a change, however long Redis is away, until ctx ends.
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
		h.log.Warn("cannot store a change of a job, will try again", "error", err)
		if !relay.Sleep(ctx, wait) {
			return context.Cause(ctx)
		}
	}
}

func (h *jobRunner) newEvents() *eventBuilder {
	return &eventBuilder{job: &h.job.jobSpec, newID: h.worker.o.NewID}
}

// errorText is what people read of an error.
func errorText(err error) string {
	return relay.Truncate(strings.ToValidUTF8(strings.TrimSpace(err.Error()), "�"), maxError)
}
