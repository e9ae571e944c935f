package migration

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hubrelay/hubrelay/internal/await"
	"github.com/hubrelay/hubrelay/relay"
)

func (j *jobRunner) acquireServerSlot(ctx context.Context) (bool, error) {
	return j.worker.store.acquireServerSlot(ctx, j.job, j.worker.o.ServerConcurrency, j.worker.timings.heartbeatTimeout,
		j.hasSlot.Load())
}

// waitForServerSlot waits for the server slots and marks the job as running. If the wait exceeds ExpireAfter, it ends
// the job.
func (j *jobRunner) waitForServerSlot(ctx context.Context) error {
	place := queuePlace{job: j.job.ID, account: j.job.Account, queuedAt: j.job.Queued}
	j.worker.setPlace(place)
	for start := time.Now(); ; {
		if j.job.State == relay.JobScheduled && time.Since(j.job.queuedLocal) > j.worker.o.ExpireAfter {
			reason := fmt.Sprintf(
				"no server slot became free within %s; nothing was changed, request the migration again",
				j.worker.o.ExpireAfter,
			)
			return j.finishJob(ctx, relay.JobExpired, reason, "", j.newEvents())
		}
		pollCtx, stop := context.WithTimeout(ctx, j.worker.timings.slotPollInterval)
		steps, err := j.worker.driverSteps(pollCtx)
		stop()
		if err == nil && !j.useServers() {
			if err = errNoServer; time.Since(start) > j.worker.timings.heartbeatTimeout {
				return err
			}
		}
		if err == nil {
			acquired, err := j.acquireServerSlot(ctx)
			switch {
			case err == nil && acquired:
				place.queuedAt = time.Time{}
				j.worker.setPlace(place)
				j.hasSlot.Store(true)
				return j.markRunning(ctx, steps)
			case err == nil && j.job.State == relay.JobScheduled &&
				time.Since(start) > j.worker.timings.heartbeatInterval && j.worker.hasTooManyAhead(j.job.ID):
				err = j.worker.store.requeue(ctx, j.job)
				if err == nil || errors.Is(err, errSuperseded) {
					return cmp.Or(err, errRequeued)
				}
			}
		}
		if !await.Duration(ctx, j.worker.timings.slotPollInterval) {
			return context.Cause(ctx)
		}
	}
}

// releaseServerSlot lets other jobs use the servers. A job without progress waits without a slot, so it cannot block the jobs of
// other accounts.
func (j *jobRunner) releaseServerSlot(ctx context.Context) {
	j.hasSlot.Store(false)
	if err := j.worker.store.releaseServerSlot(ctx, j.job.ID); err != nil {
		j.log.Warn("could not release server slots", "error", err)
	}
}

// useServers copies the settings of the job's servers from this node's inventory file. It reports whether the file
// defines both servers. The settings do not change while this node works on the job.
func (j *jobRunner) useServers() bool {
	j.job.sourceSettings = j.worker.serverSettings(j.job.Source)
	j.job.destinationSettings = j.worker.serverSettings(j.job.Destination)
	return j.job.sourceSettings != nil && j.job.destinationSettings != nil
}
