package migration

import (
	"context"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/relay"
)

// A job whose record is damaged does not stand in the way for ever: it goes on where only its progress is lost, and fails where
// nobody knows what it was to do.
func TestDamagedRecord(t *testing.T) {
	t.Parallel()
	b := newRedis(t)
	s := newSite(t, b)
	keys, p := b.Keys(), b.Keys().Partition(hubA)
	progress, order := s.migrate(0, "s2"), s.migrate(1, "s2")
	for id, fields := range map[string][]any{
		progress: {"steps", "[", stepField + "copy", "{", "queued", "x", "attempts", "1e9", "started", "-"},
		order:    {"order", "{"},
	} {
		if err := b.Commands().HSet(t.Context(), keys.Job(id, p), fields...).Err(); err != nil {
			t.Fatal(err)
		}
	}
	// Not over, since queued is lost: it never waited too long.
	s.work(b, "w1", &fakeDriver{migrate: func(context.Context, relay.Migration, func(relay.Progress)) error { return nil }}, nil)
	if j := s.over(progress); j.State != relay.JobCompleted || s.where(0) != "s2" {
		t.Errorf("without its progress: %s %s", j.State, j.Error)
	}
	const cause = "the record of the job in Redis was damaged; look where the instance is, and ask again"
	if j := s.await(order, "over", func(j *job) bool { return j.State.IsFinal() }); j.State != relay.JobError || j.Error != cause || j.Instance != "i1" || j.Hub != hubA {
		t.Errorf("without its order: %+v", j)
	}
	s.over(s.migrate(1, "s3")) // nothing is in its way
}

// How long a job has waited is what Redis' clock says, whatever ours shows.
func TestClockOfTheNode(t *testing.T) {
	t.Parallel()
	queued := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for _, here := range []time.Time{queued.AddDate(-3, 0, 0), queued.AddDate(3, 0, 0)} {
		j := &job{Queued: queued}
		j.noteClocks(queued.Add(time.Minute), here)
		if waited := here.Sub(j.queuedLocal); waited != time.Minute {
			t.Errorf("by the clock at %s it has waited for %s", here, waited)
		}
	}
	j := &job{}
	j.noteClocks(queued, queued.Add(time.Hour))
	if waited := queued.Add(time.Hour).Sub(j.queuedLocal); waited != 0 {
		t.Errorf("nobody knows since when, and it has waited for %s", waited)
	}
}
