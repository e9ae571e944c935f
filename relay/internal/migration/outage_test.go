package migration

import (
	"context"
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/internal/await"
	"github.com/hubrelay/hubrelay/internal/redistest"
	"github.com/hubrelay/hubrelay/relay"
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
