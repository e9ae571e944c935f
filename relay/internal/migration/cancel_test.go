package migration

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
)

// adminJobs returns the operations of operators on the jobs of a site.
func (s *site) adminJobs() *AdminJobs {
	d := &fakeDriver{}
	return (&Module{
		driver: d, service: s.svc, worker: NewWorker(WorkerOptions{Redis: s.b, Inventory: s.inv, Driver: d}),
		log: slog.New(slog.DiscardHandler),
	}).AdminJobs()
}

func (s *site) cancel(id string) {
	s.t.Helper()
	if j, err := s.adminJobs().CancelJob(s.t.Context(), id); err != nil || !j.Canceled {
		s.t.Fatalf("cancel: got %+v, %v", j, err)
	}
}

func TestCancelJob_Queued(t *testing.T) {
	t.Parallel()
	forEachRedis(t, func(t *testing.T, b *redisconn.Conn) {
		s := newSite(t, b)
		id := s.migrate(0, "s2")
		s.cancel(id)
		if j := s.job(id); j.State != relay.JobError || j.Error != errCanceled.Error() || j.Completed.IsZero() {
			t.Errorf("got %+v", j)
		}
		compare(t, "events", s.events(id), []string{
			"job.created new@s1", "job.state.changed queued@s1",
			"job.state.changed error@s1 the migration was canceled by an operator",
		})
		s.cancel(id) // again
		d := &fakeDriver{migrate: func(context.Context, relay.Migration, func(relay.Progress)) error { return nil }}
		s.work(s.b, "w1", d, nil)
		next := s.migrate(0, "s3")
		if j := s.awaitEnd(next); j.State != relay.JobCompleted {
			t.Errorf("the next job: got %+v", j)
		}
		var rejected *relay.Error
		if _, err := s.adminJobs().CancelJob(t.Context(), next); !errors.As(err, &rejected) || rejected.Code != relay.CodeInvalidState {
			t.Errorf("cancel a completed job: got %v", err)
		}
		if calls := d.called(); len(calls) != 1 || calls[0].JobID != next {
			t.Errorf("got calls %+v", calls)
		}
	})
}

// A worker that waits for the servers of the job must not start it.
func TestCancelJob_WaitingForServers(t *testing.T) {
	t.Parallel()
	s := newSite(t, newRedis(t))
	s.lease = time.Minute // slots must not expire on a slow machine
	release := make(chan struct{})
	d := &fakeDriver{migrate: func(ctx context.Context, _ relay.Migration, _ func(relay.Progress)) error {
		select {
		case <-release:
		case <-ctx.Done():
		}
		return ctx.Err()
	}}
	s.work(s.b, "w1", d, func(o *WorkerOptions) { o.ServerConcurrency = 1 })
	first := s.migrate(0, "s2")
	s.await(first, "running", func(j *job) bool { return j.State == relay.JobRunning })
	second := s.migrate(1, "s2")
	s.await(second, "scheduled", func(j *job) bool { return j.State == relay.JobScheduled })
	s.cancel(second)
	testkit.WaitForValue(t, "the slots of the canceled job to be released", false, func() bool {
		return s.b.Commands().HExists(t.Context(), keys{s.b.Keys()}.serverSlots(), second).Val()
	})
	close(release)
	s.awaitEnd(first)
	third := s.migrate(2, "s2")
	s.awaitEnd(third)
	if j := s.job(second); j.State != relay.JobError || j.Error != errCanceled.Error() || !j.Started.IsZero() {
		t.Errorf("got %+v", j)
	}
	for _, call := range d.called() {
		if call.JobID == second {
			t.Errorf("got call %+v", call)
		}
	}
}

func TestCancelJob_Running(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		undo        error // what the driver returns for the rollback
		state       relay.JobState
		text, ended string
	}{
		"rolled back": {
			errors.New("undone"), relay.JobError, errCanceled.Error() + "; undone", "s1",
		},
		"too late": {nil, relay.JobCompleted, "", "s2"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t, newRedis(t))
			s.lease = time.Minute // a late heartbeat would end a call
			d := &fakeDriver{migrate: func(ctx context.Context, m relay.Migration, report func(relay.Progress)) error {
				if m.Undo {
					return tt.undo
				}
				report(relay.Progress{Step: "copy", Bytes: 1, Total: 2})
				<-ctx.Done()
				return ctx.Err()
			}}
			s.work(s.b, "w1", d, nil)
			id := s.migrate(0, "s2")
			s.await(id, "copying", func(j *job) bool { return len(j.Progress) == 1 })
			s.cancel(id)
			j := s.awaitEnd(id)
			if j.State != tt.state || j.Error != tt.text || !j.canceled || s.serverOf(0) != tt.ended {
				t.Errorf("got %+v, on %s", j, s.serverOf(0))
			}
			if calls := d.called(); len(calls) != 2 || calls[0].Undo || !calls[1].Undo {
				t.Errorf("got calls %+v", calls)
			}
		})
	}
}

// The worker of a canceled job stops before the driver has ended. Another one rolls the job back.
func TestCancelJob_WorkerStops(t *testing.T) {
	t.Parallel()
	s := newSite(t, newRedis(t))
	s.lease = time.Minute // a late heartbeat would end a call
	started := make(chan struct{})
	var once sync.Once
	d := &fakeDriver{migrate: func(ctx context.Context, m relay.Migration, _ func(relay.Progress)) error {
		if m.Undo {
			return errors.New("undone")
		}
		once.Do(func() { close(started) })
		<-ctx.Done()
		return relay.Indeterminate(ctx.Err())
	}}
	stop := s.work(s.b, "w1", d, nil)
	id := s.migrate(0, "s2")
	select {
	case <-started:
	case <-time.After(testkit.Patience):
		t.Fatal("the driver was not called")
	}
	stop()
	s.cancel(id)
	s.work(s.b, "w2", d, nil)
	if j := s.awaitEnd(id); j.State != relay.JobError || s.serverOf(0) != "s1" {
		t.Errorf("got %+v, on %s", j, s.serverOf(0))
	}
	calls := d.called()
	if !calls[len(calls)-1].Undo || len(calls) != 2 {
		t.Errorf("got calls %+v", calls)
	}
}
