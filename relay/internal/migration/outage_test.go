package migration

import (
	"context"
	"errors"
	"math/rand/v2"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/internal/await"
	"github.com/hubrelay/hubrelay/internal/redistest"
	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
)

// If Redis is killed repeatedly while jobs run, each job completes once, and its events are complete and in order.
func TestWorker_SurvivesRedisCrashes(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	b := open(t, server.URL())
	s := newSite(t, b)
	d := &fakeDriver{migrate: func(ctx context.Context, m relay.Migration, report func(relay.Progress)) error {
		for _, step := range []string{"copy", "start"} {
			report(relay.Progress{Step: step})
			if !await.Duration(ctx, 10*time.Millisecond) { // duration of a step
				return ctx.Err()
			}
			report(relay.Progress{Step: step, Completed: true})
		}
		if m.Instance == "i3" {
			return errors.New("no space")
		}
		return nil
	}}
	for _, name := range []string{"w1", "w2"} {
		s.work(b, name, d, nil)
	}
	ids := make([]string, 10)
	for i := range ids {
		ids[i] = s.migrate(i, "s2")
	}
	const seed = 5
	random := rand.New(rand.NewPCG(seed, 0))
	for range 8 {
		await.Duration(t.Context(), time.Duration(random.IntN(60))*time.Millisecond) // restart at a random time
		server.Restart()
	}
	for i, id := range ids {
		j := s.awaitEnd(id)
		want := []string{
			"job.created new@s1", "job.state.changed queued@s1", "job.state.changed scheduled@s1",
			"job.state.changed running@s1",
			"container.instance.state.changed migrating@s1", "container.instance.state.changed running@s2",
			"job.state.changed completed@s2",
		}
		if i == 3 {
			want = append(want[:5], "container.instance.error running@s1 no space",
				"container.instance.state.changed running@s1", "job.state.changed error@s1 no space")
		}
		compare(t, "events of job "+id+" with state "+string(j.State), s.events(id), want)
	}
}

// With redis.min_replicas, a request waits for replicas, and a repeat waits again. A rejection does not wait.
func TestMigrate_WaitsForReplicas(t *testing.T) {
	t.Parallel()
	primary, replica := redistest.StartPair(t, redistest.FreePort(t))
	s := newSite(t, openOptions(t, redisconn.Options{URL: primary.URL(), Partitions: 3, MinReplicas: 1}))
	r := s.request(0, "s2")
	r.IdempotencyKey = "k"
	replica.Signal(syscall.SIGSTOP)
	offset := int64(0)
	for range 2 {
		var rejected *relay.Error
		if _, err := s.svc.Migrate(t.Context(), r); !errors.Is(err, redisconn.ErrTooFewReplicas) ||
			!errors.As(err, &rejected) || rejected.Code != relay.CodeNotReady {
			t.Errorf("with a stopped replica: got %v, want ErrTooFewReplicas", err)
		}
		info := primary.Client().Info(t.Context(), "replication").Val()
		before := offset
		if offset, _ = strconv.ParseInt(redisconn.InfoField(info, "master_repl_offset"), 10, 64); offset <= before {
			t.Errorf("the request wrote nothing, so WAIT confirms what a replica does not have")
		}
	}
	other := s.request(0, "s3")
	var rejected *relay.Error
	if _, err := s.svc.Migrate(t.Context(), other); !errors.As(err, &rejected) || rejected.Code != relay.CodeInvalidState {
		t.Errorf("another request for the instance: got %v, want %s", err, relay.CodeInvalidState)
	}
	other.IdempotencyKey = "k"
	if _, err := s.svc.Migrate(t.Context(), other); !errors.As(err, &rejected) || rejected.Code != relay.CodeInvalidArgument {
		t.Errorf("another request with the same key: got %v, want %s", err, relay.CodeInvalidArgument)
	}
	jobs, err := s.svc.store.jobsOfInstance(t.Context(), hubA, "c0", "i0")
	if err != nil || len(jobs) != 1 {
		t.Fatalf("got jobs %v and error %v, want one", jobs, err)
	}
	replica.Signal(syscall.SIGCONT)
	testkit.Eventually(t, "the repeated request to succeed", func() error {
		task, err := s.svc.Migrate(t.Context(), r)
		if err == nil && task.JobID != jobs[0].ID {
			t.Fatalf("got job %s, want %s", task.JobID, jobs[0].ID)
		}
		return err
	})
}
