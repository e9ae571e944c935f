package migration

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hubrelay/hubrelay/internal/redistest"
	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
)

// changeJob changes the stored job at once, as a failover or another node does.
func (s *site) changeJob(id string, change func(pipe redis.Pipeliner, key string)) {
	s.t.Helper()
	k := keys{s.b.Keys()}
	if _, err := s.b.Commands().TxPipelined(s.t.Context(), func(pipe redis.Pipeliner) error {
		change(pipe, k.job(id, k.Partition(hubA)))
		return nil
	}); err != nil {
		s.t.Fatal(err)
	}
}

// startCopy starts a migration whose driver copies until it is stopped, and waits for the copy.
func (s *site) startCopy(d *fakeDriver) (id string) {
	s.t.Helper()
	s.lease = time.Minute // a late heartbeat would end a call
	d.migrate = func(ctx context.Context, m relay.Migration, report func(relay.Progress)) error {
		if m.Undo {
			return errors.New("undone")
		}
		report(relay.Progress{Step: "copy", Bytes: 1, Total: 2})
		<-ctx.Done()
		return ctx.Err()
	}
	s.work(s.b, "w1", d, nil)
	id = s.migrate(0, "s2")
	s.await(id, "copying", func(j *job) bool { return len(j.Progress) == 1 })
	return id
}

// A failover can lose that a job was claimed and runs. Its worker stores it again, so a cancellation rolls the job back.
func TestWorker_RestoresLostStart(t *testing.T) {
	t.Parallel()
	s := newSite(t, newRedis(t))
	d := &fakeDriver{}
	id := s.startCopy(d)
	s.changeJob(id, func(pipe redis.Pipeliner, key string) {
		pipe.HSet(t.Context(), key, "state", "scheduled", "lease", 1)
		pipe.HDel(t.Context(), key, "started", "steps")
	})
	s.await(id, "running again", func(j *job) bool {
		return j.State == relay.JobRunning && !j.Started.IsZero() && len(j.Steps) == 2
	})
	s.cancel(id)
	if j := s.awaitEnd(id); j.Error != errCanceled.Error()+"; undone" {
		t.Errorf("got error %q", j.Error)
	}
}

// If a job whose start was lost ends, its worker moves the instance back. If another worker has run and ended the job, it does not.
func TestWorker_RollsBackJobThatEndsWithoutStart(t *testing.T) {
	t.Parallel()
	for name, isLost := range map[string]bool{"start is lost": true, "ended by another worker": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t, newRedis(t))
			d := &fakeDriver{}
			id := s.startCopy(d)
			slots := keys{s.b.Keys()}.serverSlots()
			s.changeJob(id, func(pipe redis.Pipeliner, key string) {
				pipe.HIncrBy(t.Context(), key, "lease", 1)
				pipe.HSet(t.Context(), key, "state", "error")
				if isLost {
					pipe.HDel(t.Context(), key, "started", "steps")
				}
			})
			testkit.WaitFor(t, "the worker to leave the job", func() bool {
				return s.b.Commands().HLen(t.Context(), slots).Val() == 0
			})
			calls := d.called()
			if undone := calls[len(calls)-1].Undo; undone != isLost || len(calls) > 2 {
				t.Errorf("got calls %+v", calls)
			}
		})
	}
}

// The driver is called only when a replica has the start of the job.
func TestWorker_StartWaitsForReplicas(t *testing.T) {
	t.Parallel()
	primary, replica := redistest.StartPair(t, redistest.FreePort(t))
	s := newSite(t, open(t, primary.URL()))
	s.lease = time.Minute
	d := &fakeDriver{migrate: func(context.Context, relay.Migration, func(relay.Progress)) error { return nil }}
	replicated := openOptions(t, redisconn.Options{URL: primary.URL(), Partitions: 3, MinReplicas: 1})
	replica.Signal(syscall.SIGSTOP)
	id := s.migrate(0, "s2")
	for worker := range 2 { // the second one finds a running job
		var log testkit.Buffer
		stop := s.work(replicated, fmt.Sprint("w", worker), d, func(o *WorkerOptions) {
			o.Log = slog.New(slog.NewTextHandler(&log, nil))
		})
		testkit.WaitFor(t, "the replica to be missed", func() bool {
			return strings.Contains(log.String(), "too few replicas")
		})
		if j, calls := s.job(id), d.called(); j.State != relay.JobRunning || len(calls) != 0 {
			t.Errorf("worker %d without a replica: got state %s and calls %+v", worker, j.State, calls)
		}
		if worker == 0 {
			stop()
		}
	}
	replica.Signal(syscall.SIGCONT)
	if j := s.awaitEnd(id); j.State != relay.JobCompleted {
		t.Errorf("got %+v", j)
	}
}

// If a failover loses the slots of a running job, the job gets them again. Its entry expires later than that of a waiting job.
func TestServerSlot_OfRunningJob(t *testing.T) {
	t.Parallel()
	b := newRedis(t)
	store, ctx := newJobStore(b), t.Context()
	newJob := func(id string) *job {
		return &job{jobSpec: jobSpec{ID: id, Source: "s1", Destination: "s2"}, Queued: time.UnixMilli(1)}
	}
	acquire := func(id string, maximum int, isRunning bool) bool {
		t.Helper()
		ok, err := store.acquireServerSlot(ctx, newJob(id), maximum, time.Minute, isRunning)
		if err != nil {
			t.Fatal(err)
		}
		return ok
	}
	if !acquire("a", 1, false) {
		t.Fatal("the first job got no slot")
	}
	slots := keys{b.Keys()}.serverSlots()
	b.Commands().Del(ctx, slots)
	if !acquire("b", 1, false) || !acquire("a", 1, true) {
		t.Error("a running job lost its slot")
	}
	if acquire("c", 2, false) {
		t.Error("a third job got a slot, although two jobs run")
	}
	for id, want := range map[string]time.Duration{"a": 12 * time.Minute, "c": time.Minute} {
		fields := strings.Split(b.Commands().HGet(ctx, slots, id).Val(), "\n")
		expires, err := strconv.ParseInt(fields[3], 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		if ttl := time.Until(time.UnixMilli(expires)); ttl < want-30*time.Second || ttl > want+time.Second {
			t.Errorf("the entry of job %s expires in %s, want about %s", id, ttl, want)
		}
	}
}
