package pipeline

import (
	"errors"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/redis/go-redis/v9"

	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/delivery/attempt"
	"github.com/hubrelay/hubrelay/relay/internal/delivery/store"
)

// The statistics of two nodes are added, and a new node reads them.
func TestStats_AllNodes(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	hour := func(o *Options) { o.Schedule = Schedule{Delays: []time.Duration{time.Hour}} }
	one := e.pipeline(&fakeSink{answer: answers(nil, errFar, relay.Permanent(&relay.ResponseError{Status: 404}))}, hour)
	two := e.pipeline(&fakeSink{answer: answers(nil, errors.New("?"), nil)}, hour)
	for i := range 6 {
		p := one
		if i%2 == 1 {
			p = two
		}
		if err := handleDelivery(t.Context(), p, delivery("d"+strconv.Itoa(i))); err != nil {
			t.Fatal(err)
		}
	}
	one.CountDropped(5)
	stop := e.retries(one)
	e.client.ZAdd(t.Context(), "hubrelay:retry:s", redis.Z{Score: 1, Member: "d2"})
	testkit.WaitFor(
		t,
		"tried again",
		func() bool { return one.stats.retried.Load() == 1 || e.storedStats()["retried"] == "1" },
	)
	e.retries(two)
	testkit.WaitFor(
		t,
		"told",
		func() bool { return e.storedStats()["delivered"] == "3" && e.storedStats()["failed:status_4xx"] == "2" },
	)
	stop()
	got, err := e.store.Stats.Read(t.Context(), []string{"s", "other"})
	if err != nil || got[0].LastSuccess.IsZero() || time.Since(got[0].LastSuccess).Abs() > time.Hour ||
		!got[1].LastSuccess.IsZero() {
		t.Fatalf("%+v, %v", got, err)
	}
	want := map[string]int64{attempt.Failed5xx: 1, attempt.FailedOther: 1, attempt.Failed4xx: 2}
	if diff := cmp.Diff(want, got[0].Failed); diff != "" || got[0].Delivered != 3 || got[0].Retried != 1 ||
		got[0].Dropped != 5 {
		t.Errorf("%+v\n%s", got[0], diff)
	}
}

func (e *env) storedStats() map[string]string {
	return e.client.HGetAll(e.t.Context(), "hubrelay:stats:s").Val()
}

// Statistics that could not be stored are stored later.
func TestStats_RedisOutage(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	p := e.pipeline(&fakeSink{answer: answers(nil)}, nil)
	r := e.newNode(0, p)
	if err := handleDelivery(t.Context(), p, delivery("d1")); err != nil {
		t.Fatal(err)
	}
	p.stats.recordAttempt(2, time.Millisecond, attemptFailure{&net.DNSError{Err: "no such host"}, time.Now()})
	e.server.Kill()
	r.reportPipelines(t.Context(), r.listPipelines(), false)
	p.stats.recordAttempt(1, time.Millisecond, attemptFailure{})
	e.server.Restart()
	testkit.WaitFor(
		t,
		"told",
		func() bool {
			r.reportPipelines(t.Context(), r.listPipelines(), false)
			return e.storedStats()["delivered"] != ""
		},
	)
	want := map[string]string{
		"delivered": "2", "retried": "1", "failed:dns": "1", "last_error": "lookup : no such host",
	}
	if diff := cmp.Diff(want, withoutTime(e.storedStats())); diff != "" {
		t.Error(diff)
	}
	if happened := p.stats.drain(); len(happened.counters) != 0 || happened.lastFailure.err != nil {
		t.Errorf("not stored: %v", happened)
	}
}

func withoutTime(fields map[string]string) map[string]string {
	delete(fields, "last_success")
	delete(fields, "last_error_at")
	delete(fields, "microseconds")
	return fields
}

// The latest error of all nodes is kept, truncated, and stays after a success.
func TestStats_LastError(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	one, two := e.pipeline(&fakeSink{answer: answers(nil)}, nil), e.pipeline(&fakeSink{answer: answers(nil)}, nil)
	now := time.Now()
	long := "42 " + strings.Repeat("ü", store.MaxErrorBytes)
	one.stats.recordAttempt(1, time.Millisecond, attemptFailure{errors.New("an hour ago"), now.Add(-time.Hour)})
	two.stats.recordAttempt(1, time.Millisecond, attemptFailure{errors.New(long), now.Add(-time.Minute)})
	two.stats.recordAttempt(1, time.Millisecond, attemptFailure{errors.New("earlier, counted later"), now.Add(-2 * time.Minute)})
	two.stats.recordAttempt(1, time.Millisecond, attemptFailure{})
	for _, p := range []*Pipeline{two, one} {
		if err := reporterOf(e, p).FlushStats(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	got, err := e.store.Stats.Read(t.Context(), []string{"s", "other"})
	if err != nil {
		t.Fatal(err)
	}
	if f := got[0]; f.LastError != store.Truncate(long, store.MaxErrorBytes) ||
		time.Since(f.LastErrorAt).Round(time.Minute) != time.Minute ||
		f.Delivered != 1 {
		t.Errorf("%+v", f)
	}
	if f := got[1]; f.LastError != "" || !f.LastErrorAt.IsZero() {
		t.Errorf("unknown sink: %+v", f)
	}
	// An error that looks like a number is not a counter.
	two.stats.recordAttempt(1, time.Millisecond, attemptFailure{errors.New("7"), now})
	if err := reporterOf(e, two).FlushStats(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got, err = e.store.Stats.Read(t.Context(), []string{"s"}); err != nil || got[0].LastError != "7" ||
		got[0].Failed[attempt.FailedOther] != 4 {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestStats_OldestRetryAge(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	for id, age := range map[string]time.Duration{"young": time.Minute, "old": 2 * time.Hour, "ahead": -time.Hour} {
		if _, err := e.store.Retries.Schedule(
			t.Context(), "s", store.Scheduled{ID: id, Body: "{}"}, time.Hour, time.Now().Add(-age)); err != nil {
			t.Fatal(err)
		}
	}
	e.client.ZAdd(
		t.Context(),
		"hubrelay:digests:late",
		redis.Z{Score: float64(time.Now().Add(-time.Hour).UnixMilli()), Member: "g"},
	)
	e.client.ZAdd(
		t.Context(),
		"hubrelay:digests:other",
		redis.Z{Score: float64(time.Now().Add(time.Hour).UnixMilli()), Member: "g"},
	)
	f, err := e.store.Stats.Read(t.Context(), []string{"s", "other", "late"})
	if err != nil || f[2].OldestRetryAge < time.Hour || f[0].OldestRetryAge < 2*time.Hour ||
		f[0].OldestRetryAge > 3*time.Hour ||
		f[1].OldestRetryAge != 0 {
		t.Errorf("%+v, %v", f, err)
	}
}
