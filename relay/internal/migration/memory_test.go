package migration

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/internal/embeddedredis"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
)

// The in-process Redis of `memory:` supports all scripts: one job completes, one fails, one waits for its slots, and an
// import changes the inventory.
func TestWorker_InProcessRedis(t *testing.T) {
	t.Parallel()
	memory, err := embeddedredis.Memory(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(memory.Close)
	b, err := redisconn.Open(t.Context(), redisconn.Options{Dialer: memory.Dialer, Partitions: 3})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	s := newSite(t, b)
	s.lease = time.Minute // slots must not expire on a slow machine
	stuck := &fakeDriver{migrate: func(ctx context.Context, _ relay.Migration, report func(relay.Progress)) error {
		report(relay.Progress{Step: "copy", Bytes: 1, Total: 2})
		<-ctx.Done()
		return ctx.Err()
	}}
	stop := s.work(b, "w1", stuck, func(o *WorkerOptions) { o.ServerConcurrency = 1 })
	first := s.migrate(0, "s2")
	s.await(first, "started", func(j *job) bool { return len(j.Progress) == 1 })
	second := s.migrate(1, "s2")
	s.await(second, "scheduled", func(j *job) bool { return j.State == relay.JobScheduled })
	stop()
	d := &fakeDriver{migrate: func(_ context.Context, m relay.Migration, _ func(relay.Progress)) error {
		if m.Instance == "i1" {
			return errors.New("no space")
		}
		return nil
	}}
	s.work(b, "w2", d, nil)
	if j := s.awaitEnd(first); j.State != relay.JobCompleted || s.serverOf(0) != "s2" {
		t.Errorf("got state %s, error %s on %s", j.State, j.Error, s.serverOf(0))
	}
	if j := s.awaitEnd(second); j.State != relay.JobError || j.Error != "no space" || time.Since(j.Queued) > time.Hour {
		t.Errorf("got state %s, error %s", j.State, j.Error)
	}
	compare(t, "events", s.events(first), []string{
		"job.created new@s1", "job.state.changed queued@s1", "job.state.changed scheduled@s1",
		"job.state.changed running@s1",
		"container.instance.state.changed migrating@s1", "container.instance.state.changed running@s2",
		"job.state.changed completed@s2",
	})
	r := s.request(2, "s2")
	r.IdempotencyKey = "k"
	one, err := s.svc.Migrate(t.Context(), r)
	two, again := s.svc.Migrate(t.Context(), r)
	if err != nil || again != nil || one != two {
		t.Errorf("got %v, %v and then %v, %v; want the same job", one, err, two, again)
	}
}
