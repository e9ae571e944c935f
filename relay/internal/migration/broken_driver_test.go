package migration

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay"
)

func completes(context.Context, relay.Migration, func(relay.Progress)) error { return nil }

// rejectingDriver rejects every configuration.
type rejectingDriver struct{ *fakeDriver }

func (rejectingDriver) Configure(context.Context, []relay.Server) error {
	return errors.New("path /s1 does not exist")
}

// A node whose driver is not ready leaves the jobs to other nodes.
func TestWorker_WithoutDriverLeavesJobs(t *testing.T) {
	t.Parallel()
	b := newRedis(t)
	s := newSite(t, b)
	s.work(b, "w1", rejectingDriver{&fakeDriver{migrate: completes}}, nil)
	var ids []string
	for i := range 10 {
		ids = append(ids, s.migrate(i, "s2"))
	}
	s.work(b, "w2", &fakeDriver{migrate: completes}, nil)
	for _, id := range ids {
		if j := s.awaitEnd(id); j.State != relay.JobCompleted {
			t.Errorf("got state %s, error %s", j.State, j.Error)
		}
	}
}

// A node releases a job if the outcome of its driver calls is always unknown.
func TestWorker_ReleasesJobAfterFailures(t *testing.T) {
	t.Parallel()
	b := newRedis(t)
	s := newSite(t, b)
	broken := &fakeDriver{migrate: func(context.Context, relay.Migration, func(relay.Progress)) error {
		return relay.Indeterminate(errors.New("the program of the driver is missing"))
	}}
	s.work(b, "w1", broken, nil)
	id := s.migrate(0, "s2")
	s.await(id, "undo requested", func(j *job) bool { return j.undo })
	s.work(b, "w2", &fakeDriver{migrate: func(context.Context, relay.Migration, func(relay.Progress)) error {
		return errors.New("undone")
	}}, nil)
	if j := s.awaitEnd(id); j.State != relay.JobError ||
		j.Error != "the program of the driver is missing; undone" {
		t.Errorf("got state %s, error %s", j.State, j.Error)
	}
}

// A job that makes no progress does not keep its server slots, so other jobs on the same servers run.
func TestWorker_StuckJobLeavesSlots(t *testing.T) {
	t.Parallel()
	b := newRedis(t)
	s := newSite(t, b)
	driver := &fakeDriver{migrate: func(_ context.Context, m relay.Migration, _ func(relay.Progress)) error {
		if m.Instance == "i0" {
			return relay.Indeterminate(errors.New("the instance is there twice"))
		}
		return nil
	}}
	s.work(b, "w1", driver, func(o *WorkerOptions) { o.ServerConcurrency = 1 })
	stuck := s.migrate(0, "s2")
	s.await(stuck, "no progress", func(j *job) bool { return j.attempts > maxDriverFailures })
	for i := range 3 {
		if j := s.awaitEnd(s.migrate(i+1, "s2")); j.State != relay.JobCompleted {
			t.Errorf("got state %s, error %s", j.State, j.Error)
		}
	}
	s.await(stuck, "running", func(j *job) bool { return j.State == relay.JobRunning })
}

// Jobs expire even if no node has a working driver.
func TestWorker_ExpiresJobsWithoutDriver(t *testing.T) {
	t.Parallel()
	b := newRedis(t)
	s := newSite(t, b)
	s.work(b, "w1", rejectingDriver{&fakeDriver{}}, func(o *WorkerOptions) { o.ExpireAfter = 1 })
	if j := s.awaitEnd(s.migrate(0, "s2")); j.State != relay.JobExpired {
		t.Errorf("got state %s, error %s", j.State, j.Error)
	}
}

// If Redis loses a running job, its instance is moved back.
func TestWorker_RollsBackLostJob(t *testing.T) {
	t.Parallel()
	b := newRedis(t)
	s := newSite(t, b)
	s.lease = time.Minute // a late heartbeat would release the job before Redis loses it
	back := make(chan relay.Migration, 10)
	s.work(b, "w1", &fakeDriver{migrate: func(ctx context.Context, m relay.Migration, _ func(relay.Progress)) error {
		switch {
		case !m.Undo:
			<-ctx.Done()
			return ctx.Err()
		case len(back) == 0:
			back <- m
			return relay.Indeterminate(errors.New("not yet"))
		}
		back <- m
		return errors.New("undone")
	}}, nil)
	id := s.migrate(0, "s2")
	j := s.await(id, "running", func(j *job) bool { return j.State == relay.JobRunning })
	if err := b.Commands().FlushAll(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		select {
		case m := <-back:
			if m.JobID != id || m.Instance != "i0" || m.Lease < j.lease {
				t.Errorf("got rollback %+v", m)
			}
		case <-time.After(testkit.Patience):
			t.Fatal("the instance was not moved back")
		}
	}
}
