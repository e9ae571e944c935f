package migration

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hubrelay/hubrelay/internal/redistest"
	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay"
)

// If a worker holds the maximum number of jobs for one server, jobs for other servers still run: new jobs and
// abandoned ones.
func TestWorker_BusyServerDoesNotBlockOthers(t *testing.T) {
	t.Parallel()
	for _, abandoned := range []bool{false, true} {
		t.Run(fmt.Sprint("abandoned ", abandoned), func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t)
			b := open(t, server.URL())
			s := newSite(t, b)
			done := &fakeDriver{
				migrate: func(context.Context, relay.Migration, func(relay.Progress)) error { return nil },
			}
			stop := s.work(b, "w0", done, nil)
			s.awaitEnd(s.migrate(9, "s3"))
			stop()
			waits := func(ctx context.Context, _ relay.Migration, _ func(relay.Progress)) error {
				<-ctx.Done()
				return ctx.Err()
			}
			other := ""
			if abandoned {
				dead := open(t, server.URL())
				stop := s.work(dead, "w1", &fakeDriver{migrate: waits}, nil)
				other = s.migrate(9, "s4")
				s.await(other, "running", func(j *job) bool { return j.State == relay.JobRunning })
				dead.Close()
				stop()
			}
			var crowd []string
			for i := range 9 {
				crowd = append(crowd, s.migrate(i, "s2"))
			}
			if !abandoned {
				other = s.migrate(9, "s4")
			}
			release := make(chan struct{})
			s.capacity = 4
			s.work(b, "w2", &fakeDriver{migrate: func(ctx context.Context, m relay.Migration,
				_ func(relay.Progress),
			) error {
				if m.Instance == "i9" {
					return nil
				}
				select {
				case <-release:
				case <-ctx.Done():
				}
				return ctx.Err()
			}}, func(o *WorkerOptions) { o.ServerConcurrency = 1 })
			if j := s.awaitEnd(other); j.State != relay.JobCompleted {
				t.Errorf("got state %s, error %s", j.State, j.Error)
			}
			close(release)
			for _, id := range crowd {
				if j := s.awaitEnd(id); j.State != relay.JobCompleted {
					t.Errorf("got state %s, error %s", j.State, j.Error)
				}
				if events := s.events(id); len(events) != 7 {
					t.Errorf("got events %v", events)
				}
			}
		})
	}
}

// A worker finds an abandoned job after many jobs of other workers.
func TestClaimAbandoned_AfterManyActiveJobs(t *testing.T) {
	t.Parallel()
	b := newRedis(t)
	store, ctx := newJobStore(b), t.Context()
	key := keys{b.Keys()}.jobs(1)
	if err := store.createGroup(ctx, []int{0, 1, 2}); err != nil {
		t.Fatal(err)
	}
	last := ""
	for i := range 50 {
		last = b.Commands().XAdd(ctx, &redis.XAddArgs{Stream: key, Values: []any{"job", fmt.Sprint(i)}}).Val()
		if list, err := store.readNew(ctx, []int{1}, "busy", time.Second); err != nil || len(list) != 1 {
			t.Fatal(list, err)
		}
	}
	b.Commands().Do(ctx, "XCLAIM", key, workers, "dead", 0, last, "IDLE", time.Hour.Milliseconds(), "JUSTID")
	list, err := store.claimAbandoned(ctx, "new", 10*time.Minute, 1)
	if err != nil {
		t.Fatal(err)
	}
	compare(t, "claimed jobs", list, []queuedJob{{1, last, "49"}})
}

// Jobs of one account that were queued in the same millisecond must not fill all slots of a worker, or delay another account.
func TestWorkerHasTooManyAhead_SameTime(t *testing.T) {
	t.Parallel()
	w := NewWorker(WorkerOptions{Redis: newRedis(t)})
	w.maxAhead = 3
	at := time.Now()
	for _, job := range []string{"a", "b", "c", "d"} {
		w.setPlace(queuePlace{job: job, account: "busy", queuedAt: at})
	}
	w.setPlace(queuePlace{job: "running", account: "busy"})
	w.setPlace(queuePlace{job: "e", account: "idle", queuedAt: at.Add(time.Second)})
	for job, want := range map[string]bool{"a": false, "b": true, "c": true, "d": true, "e": false} {
		if got := w.hasTooManyAhead(job); got != want {
			t.Errorf("job %s: got %t, want %t", job, got, want)
		}
	}
}

// Accounts take turns on a server, so accounts with many migrations do not delay another one, whatever the number of slots.
func TestWorker_SharesServersByAccount(t *testing.T) {
	t.Parallel()
	for concurrency := 1; concurrency <= 2; concurrency++ {
		t.Run(fmt.Sprint(concurrency), func(t *testing.T) {
			t.Parallel()
			b := newRedis(t)
			s := newSite(t, b)
			s.lease = time.Minute // slots must not expire on a slow machine
			f := inventoryOfSite()
			for i := range 4 {
				f.Containers[i].Account = "busy"
			}
			const last = 9
			f.Containers[last].Account = "other"
			s.inv.SetFile(f)
			if _, err := s.inv.Import(t.Context(), f); err != nil {
				t.Fatal(err)
			}
			finish := make(chan struct{})
			d := &fakeDriver{migrate: func(ctx context.Context, _ relay.Migration, _ func(relay.Progress)) error {
				select {
				case <-finish:
				case <-ctx.Done():
				}
				return ctx.Err()
			}}
			s.work(b, "w1", d, func(o *WorkerOptions) { o.ServerConcurrency = concurrency })
			request := func(i int) string {
				r := s.request(i, "s2")
				r.Sees = func(string) bool { return true }
				task, err := s.svc.Migrate(t.Context(), r)
				if err != nil {
					t.Fatal(err)
				}
				testkit.WaitFor(t, "the job to wait for a slot", func() bool {
					return b.Commands().HExists(t.Context(), keys{b.Keys()}.serverSlots(), task.JobID).Val()
				})
				return task.JobID
			}
			for i := range last {
				request(i)
			}
			other := request(last)
			for n := concurrency; n < concurrency+2; n++ {
				testkit.WaitFor(t, "the server to be busy", func() bool { return len(d.called()) == n })
				finish <- struct{}{}
			}
			testkit.WaitFor(t, "the next migrations", func() bool { return len(d.called()) == concurrency+2 })
			var started []string
			for _, call := range d.called() {
				started = append(started, call.Instance)
			}
			// Both accounts with many jobs have had at most one turn before.
			if !slices.Contains(started, "i9") {
				t.Errorf("got migrations of %v, want one of the other account", started)
			}
			close(finish)
			if j := s.awaitEnd(other); j.State != relay.JobCompleted {
				t.Errorf("got state %s, error %s", j.State, j.Error)
			}
		})
	}
}
