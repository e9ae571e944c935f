package deliver

import (
	"errors"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/redis/go-redis/v9"

	"github.com/hubrelay/hubrelay/relay"
)

// What happened on two nodes is known together, and to one that has just started.
func TestFiguresOfAllNodes(t *testing.T) {
	e := newEnv(t)
	hour := func(o *Options) { o.Schedule = Schedule{Waits: []time.Duration{time.Hour}} }
	one := e.pipeline(&fakeSink{answer: answers(nil, errFar, relay.Permanent(&relay.AnswerError{Status: 404}))}, hour)
	two := e.pipeline(&fakeSink{answer: answers(nil, errors.New("?"), nil)}, hour)
	for i := range 6 {
		p := one
		if i%2 == 1 {
			p = two
		}
		if err := p.Handle(t.Context(), delivery("d"+strconv.Itoa(i))); err != nil {
			t.Fatal(err)
		}
	}
	one.Dropped(5)
	stop := e.retries(one)
	e.client.ZAdd(t.Context(), "hubrelay:retry:s", redis.Z{Score: 1, Member: "d2"})
	eventually(t, "tried again", func() bool { return one.tally.retried.Load() == 1 || e.figures()["retried"] == "1" })
	e.retries(two)
	eventually(t, "told", func() bool { return e.figures()["delivered"] == "3" && e.figures()["failed:status_4xx"] == "2" })
	stop()
	got, err := e.store.Figures(t.Context(), []string{"s", "other"})
	if err != nil || got[0].LastSuccess.IsZero() || time.Since(got[0].LastSuccess).Abs() > time.Hour || !got[1].LastSuccess.IsZero() {
		t.Fatalf("%+v, %v", got, err)
	}
	want := map[string]int64{Failed5xx: 1, FailedOther: 1, Failed4xx: 2}
	if diff := cmp.Diff(want, got[0].Failed); diff != "" || got[0].Delivered != 3 || got[0].Retried != 1 || got[0].Dropped != 5 {
		t.Errorf("%+v\n%s", got[0], diff)
	}
}

func (e *env) figures() map[string]string {
	return e.client.HGetAll(e.t.Context(), "hubrelay:figures:s").Val()
}

// What could not be told is told later; what happened meanwhile with it.
func TestFiguresOutliveRedis(t *testing.T) {
	e := newEnv(t)
	p := e.pipeline(&fakeSink{answer: answers(nil)}, nil)
	r := NewRetries(RetriesOptions{Store: e.store})
	r.Add(p)
	if err := p.Handle(t.Context(), delivery("d1")); err != nil {
		t.Fatal(err)
	}
	p.tally.count(2, FailedDNS)
	e.server.Kill()
	r.tell(t.Context(), false)
	p.tally.count(1, "")
	e.server.Restart()
	eventually(t, "told", func() bool { r.tell(t.Context(), false); return e.figures()["delivered"] != "" })
	if diff := cmp.Diff(map[string]string{"delivered": "2", "retried": "1", "failed:dns": "1"}, withoutTime(e.figures())); diff != "" {
		t.Error(diff)
	}
	if happened := p.tally.take(); len(happened) != 0 {
		t.Errorf("still to tell: %v", happened)
	}
}

func withoutTime(fields map[string]string) map[string]string {
	delete(fields, fieldLastSuccess)
	return fields
}

func TestOldestParked(t *testing.T) {
	e := newEnv(t)
	for id, age := range map[string]time.Duration{"young": time.Minute, "old": 2 * time.Hour, "ahead": -time.Hour} {
		if _, err := e.store.park(t.Context(), "s", id, "{}", time.Hour, time.Now().Add(-age), ""); err != nil {
			t.Fatal(err)
		}
	}
	e.client.ZAdd(t.Context(), "hubrelay:digests:late", redis.Z{Score: float64(time.Now().Add(-time.Hour).UnixMilli()), Member: "g"})
	e.client.ZAdd(t.Context(), "hubrelay:digests:other", redis.Z{Score: float64(time.Now().Add(time.Hour).UnixMilli()), Member: "g"})
	f, err := e.store.Figures(t.Context(), []string{"s", "other", "late"})
	if err != nil || f[2].Oldest < time.Hour || f[0].Oldest < 2*time.Hour || f[0].Oldest > 3*time.Hour || f[1].Oldest != 0 {
		t.Errorf("%+v, %v", f, err)
	}
}
