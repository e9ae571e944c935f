package store

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay"
)

func TestRetries_ClaimsDueDeliveriesOnce(t *testing.T) {
	t.Parallel()
	s := startStore(t)
	s.schedule(t, "a", "", 0)
	s.schedule(t, "later", "", time.Hour)
	s.schedule(t, "b", "", 0)
	repeated := Scheduled{ID: "a", Body: "other"}
	depth, err := s.Retries.Schedule(t.Context(), testSink, repeated, time.Hour, time.Now())
	if err != nil || depth != 3 {
		t.Fatalf("repeated Schedule: got depth %d, %v, want 3", depth, err)
	}
	var claims []Claim
	for _, want := range []struct {
		id             string
		minDue, maxDue time.Duration
	}{
		{"a", 0, 0},                     // b is due
		{"b", time.Second, time.Minute}, // the leases end before the other delivery is due
		{"", time.Second, time.Minute},
	} {
		r := s.poll(t, PollRequest{Sink: testSink, MaxClaims: 1, Lease: time.Minute})
		var wantIDs []string
		if want.id != "" {
			wantIDs = []string{want.id}
		}
		if got := listClaimed(r.Claims); !slices.Equal(got, wantIDs) {
			t.Fatalf("got claims %v, want %v", got, wantIDs)
		}
		if r.Depth != 3 || r.NextDue < want.minDue || r.NextDue > want.maxDue {
			t.Errorf("after claim %q: got depth %d and next in %s, want 3 and %s to %s",
				want.id, r.Depth, r.NextDue, want.minDue, want.maxDue)
		}
		claims = append(claims, r.Claims...)
	}
	if want := encodeRecord(t, newDelivery("a")); claims[0].Body != want {
		t.Errorf("got body %q, want %q", claims[0].Body, want)
	}
	for _, c := range claims {
		if _, err := s.Retries.Complete(t.Context(), c); err != nil {
			t.Fatal(err)
		}
	}
	r := s.poll(t, PollRequest{Sink: testSink, MaxClaims: 10, Lease: time.Minute})
	if r.Depth != 1 || len(r.Claims) != 0 || r.NextDue <= 50*time.Minute || r.NextDue > time.Hour {
		t.Errorf("after Complete: got depth %d, %d claims, next in %s, want 1, 0, an hour",
			r.Depth, len(r.Claims), r.NextDue)
	}
	other := s.poll(t, PollRequest{Sink: "other", MaxClaims: 10, Lease: time.Minute})
	if other.Depth != 0 || len(other.Claims) != 0 || other.NextDue >= 0 {
		t.Errorf("other sink: got %+v, want nothing", other)
	}
}

func TestRetries_ClaimsAgainAfterLeaseEnds(t *testing.T) {
	t.Parallel()
	s := startStore(t)
	s.schedule(t, "a", "", 0)
	lost := s.claim(t, time.Millisecond)[0]
	var held Claim
	testkit.WaitForValue(t, "the lease to end", 1, func() int {
		claims := s.claim(t, time.Minute)
		if len(claims) == 1 {
			held = claims[0]
		}
		return len(claims)
	})
	if held.ID != "a" || held.Body != lost.Body {
		t.Fatalf("got claim %+v, want the delivery of %+v", held, lost)
	}
	rescheduled, err := s.Retries.Reschedule(t.Context(), lost, "stale", 0)
	if err != nil || rescheduled {
		t.Errorf("Reschedule of a lost claim: got %t, %v, want false", rescheduled, err)
	}
	if split, err := s.Retries.Split(t.Context(), lost, []Scheduled{{ID: "b"}}); err != nil || split {
		t.Errorf("Split of a lost claim: got %t, %v, want false", split, err)
	}
	if _, isHeld := s.addDeadLetter(t, lost, 0, newDelivery("a")); isHeld {
		t.Error("dead letter of a lost claim: got held, want lost")
	}
	if ids, _ := s.listDeadLetters(t, Selection{}); len(ids) != 0 {
		t.Errorf("got dead letters %v, want none", ids)
	}
	if rescheduled, err = s.Retries.Reschedule(t.Context(), held, "new", 0); err != nil || !rescheduled {
		t.Fatalf("Reschedule: got %t, %v, want true", rescheduled, err)
	}
	claims := s.claim(t, time.Minute)
	if len(claims) != 1 || claims[0].Body != "new" {
		t.Fatalf("after Reschedule: got claims %+v, want one with the new body", claims)
	}
	if _, isHeld := s.addDeadLetter(t, claims[0], 0, newDelivery("a")); !isHeld {
		t.Error("dead letter of a claim: got lost, want held")
	}
	if r := s.poll(t, PollRequest{Sink: testSink}); r.Depth != 0 {
		t.Errorf("after the dead letter: got depth %d, want 0", r.Depth)
	}
}

// A delivery that was delivered after its lease must not be delivered again.
func TestRetries_CompletesLostClaim(t *testing.T) {
	t.Parallel()
	s := startStore(t)
	s.schedule(t, "a", "", 0)
	if _, err := s.Failures.Record(t.Context(), testSink); err != nil {
		t.Fatal(err)
	}
	q := PollRequest{Sink: testSink, MaxClaims: 1, Lease: time.Minute, WithState: true}
	r := s.poll(t, q)
	if len(r.Claims) != 1 || !r.IsFailing {
		t.Fatalf("got %+v, want a claim of a failing sink", r)
	}
	lost := r.Claims[0]
	lost.LeaseEnd = "1.5"
	if _, err := s.Retries.Complete(t.Context(), lost); err != nil {
		t.Fatal(err)
	}
	if r = s.poll(t, q); r.Depth != 0 || r.IsFailing {
		t.Errorf("got depth %d, failing %t, want 0, false", r.Depth, r.IsFailing)
	}
}

func TestRetries_RemovesDeliveryWithoutRecord(t *testing.T) {
	t.Parallel()
	s := startStore(t)
	s.schedule(t, "a", "", 0)
	s.schedule(t, "b", "", 0)
	if err := s.Commands().HDel(t.Context(), RecordsKey(s.Keys(), testSink), "b").Err(); err != nil {
		t.Fatal(err)
	}
	r := s.poll(t, PollRequest{Sink: testSink, MaxClaims: 10, Lease: time.Minute})
	if got := listClaimed(r.Claims); !slices.Equal(got, []string{"a"}) || !slices.Equal(r.LostIDs, []string{"b"}) {
		t.Errorf("got claims %v, lost %v, want a, b", got, r.LostIDs)
	}
	if r.Depth != 1 {
		t.Errorf("got depth %d, want 1", r.Depth)
	}
}

func TestRetries_ScheduleAllStopsAtBacklog(t *testing.T) {
	t.Parallel()
	s := startStore(t)
	s.schedule(t, "a", "", time.Hour)
	for _, c := range []struct {
		name             string
		maxBacklog       int64
		ids              []string
		added, processed int
	}{
		{"nothing", 1, nil, 0, 0},
		{"skips a scheduled one", 3, []string{"a", "b", "c", "d", "a"}, 2, 3},
		{"skips a scheduled one when full", 3, []string{"c", "b", "d"}, 0, 2},
		{"no limit", 0, []string{"a", "b", "c", "d"}, 1, 4},
	} {
		var list []Scheduled
		for _, id := range c.ids {
			list = append(list, Scheduled{ID: id, Body: c.name})
		}
		added, processed, err := s.Retries.ScheduleAll(t.Context(), testSink, c.maxBacklog, list)
		if err != nil || added != c.added || processed != c.processed {
			t.Errorf("%s: got %d added, %d processed, %v, want %d, %d",
				c.name, added, processed, err, c.added, c.processed)
		}
	}
	if n, err := s.Retries.CountScheduled(t.Context(), testSink, []string{"a", "x", "d"}); n != 2 || err != nil {
		t.Errorf("got %d scheduled, %v, want 2", n, err)
	}
	claims := s.claim(t, time.Minute)
	if got := listClaimed(claims); !slices.Equal(got, []string{"b", "c", "d"}) { // a keeps its due time
		t.Fatalf("got claims %v, want b, c, d", got)
	}
	if want := "skips a scheduled one"; claims[0].Body != want {
		t.Errorf("got body %q, want %q", claims[0].Body, want)
	}
}

func TestRetries_MakeDueKeepsClaims(t *testing.T) {
	t.Parallel()
	s := startStore(t)
	s.schedule(t, "claimed", "", 0)
	s.claim(t, time.Hour)
	key := OrderingHub.StoredKey(relay.Notification{Hub: "h1"})
	s.schedule(t, "due", "", 0)
	s.schedule(t, "first", key, 2*time.Hour)
	s.schedule(t, "second", key, 0)
	version, err := s.States.Version(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if n, err := s.Retries.MakeDue(t.Context(), testSink); err != nil || n != 2 {
		t.Errorf("got %d due, %v, want 2", n, err)
	}
	if got, err := s.States.Version(t.Context()); err != nil || got == version {
		t.Errorf("got version %q, %v, want a new one", got, err)
	}
	claims := s.claim(t, time.Hour)
	if got := listClaimed(claims); !slices.Equal(got, []string{"due", "first"}) {
		t.Fatalf("got claims %v, want due, first", got)
	}
	for i, want := range []bool{false, true} { // the second delivery waits for the first
		if got, err := s.Retries.Complete(t.Context(), claims[i]); err != nil || got != want {
			t.Errorf("Complete(%s): got next due %t, %v, want %t", claims[i].ID, got, err, want)
		}
	}
	if got := listClaimed(s.claim(t, time.Hour)); !slices.Equal(got, []string{"second"}) {
		t.Errorf("after Complete: got claims %v, want second", got)
	}
}

// Deliveries with one due time may be on two pages.
func TestRetries_MakeDueContinuesOnNextPage(t *testing.T) {
	t.Parallel()
	s := startStore(t)
	const total, perTime = 2500, 700
	start := time.Now().Add(time.Hour).UnixMilli()
	var list []redis.Z
	for i := range total {
		list = append(list, redis.Z{Score: float64(start + int64(i/perTime)), Member: fmt.Sprint(i)})
	}
	if err := s.Commands().ZAdd(t.Context(), RetryKey(s.Keys(), testSink), list...).Err(); err != nil {
		t.Fatal(err)
	}
	if n, err := s.Retries.MakeDue(t.Context(), testSink); err != nil || n != total {
		t.Errorf("got %d due, %v, want %d", n, err, total)
	}
	if r := s.poll(t, PollRequest{Sink: testSink}); r.NextDue != 0 {
		t.Errorf("got next in %s, want 0", r.NextDue)
	}
}
