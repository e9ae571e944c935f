package migration

import (
	"context"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/relay"
)

// A damaged job does not block its instance: it continues if only its progress is lost, and fails if its spec is
// lost.
func TestWorker_HandlesDamagedJobs(t *testing.T) {
	t.Parallel()
	b := newRedis(t)
	s := newSite(t, b)
	space, p := b.Keys(), b.Keys().Partition(hubA)
	noProgress, noSpec := s.migrate(0, "s2"), s.migrate(1, "s2")
	for id, fields := range map[string][]any{
		noProgress: {"steps", "[", stepField + "copy", "{", "queued", "x", "attempts", "1e9", "started", "-"},
		noSpec:     {"order", "{"},
	} {
		if err := b.Commands().HSet(t.Context(), keys{space}.job(id, p), fields...).Err(); err != nil {
			t.Fatal(err)
		}
	}
	// The job must not expire, although its queue time is lost.
	s.work(b, "w1",
		&fakeDriver{migrate: func(context.Context, relay.Migration, func(relay.Progress)) error { return nil }}, nil)
	if j := s.awaitEnd(noProgress); j.State != relay.JobCompleted || s.serverOf(0) != "s2" {
		t.Errorf("damaged progress: got state %s, error %s", j.State, j.Error)
	}
	const cause = "the stored job was damaged; check which server the instance is on, and request the migration again"
	if j := s.awaitEnd(noSpec); j.State != relay.JobError || j.Error != cause || j.Instance != "i1" || j.Hub != hubA {
		t.Errorf("damaged spec: got %+v", j)
	}
	s.awaitEnd(s.migrate(1, "s3")) // the instance can be migrated again
}

// The waiting time depends on the clock of Redis, not on the local clock.
func TestSetQueuedLocal(t *testing.T) {
	t.Parallel()
	queued := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for _, local := range []time.Time{queued.AddDate(-3, 0, 0), queued.AddDate(3, 0, 0)} {
		j := &job{Queued: queued}
		j.setQueuedLocal(queued.Add(time.Minute), local)
		if waited := local.Sub(j.queuedLocal); waited != time.Minute {
			t.Errorf("local time %s: got waiting time %s, want 1m", local, waited)
		}
	}
	j := &job{}
	j.setQueuedLocal(queued, queued.Add(time.Hour))
	if waited := queued.Add(time.Hour).Sub(j.queuedLocal); waited != 0 {
		t.Errorf("unknown queue time: got waiting time %s, want 0", waited)
	}
}
