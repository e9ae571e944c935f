package store

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/hubrelay/hubrelay/relay/internal/redisconn/conntest"
)

// openDigest opens a digest of one notification.
func (s *testStore) openDigest(t *testing.T) {
	t.Helper()
	e := DigestEntry{
		Notification: conntest.Notification("h1", 1), Group: "g", MaxListed: 1, Wait: time.Hour, ArrivedAt: time.Now(),
	}
	if added, err := s.Digests.Add(t.Context(), testSink, e); err != nil || !added.IsNew {
		t.Fatalf("got %+v, %v, want a new digest", added, err)
	}
}

func (s *testStore) addStats(t *testing.T, deltas ...StatsDelta) {
	t.Helper()
	failed := func(i int) { t.Errorf("delta %d was not added", i) }
	if err := s.Stats.Add(t.Context(), deltas, failed); err != nil {
		t.Fatal(err)
	}
}

func TestStats_ReadsSinksInOrder(t *testing.T) {
	t.Parallel()
	s := startStore(t)
	s.schedule(t, "a", "", 0)
	s.addDeadLetters(t, "d1", "d2")
	s.openDigest(t)
	s.addStats(t,
		StatsDelta{Sink: testSink, LastError: "new", ErrorAge: time.Minute, Counters: map[string]int64{
			FieldDelivered: 2, FieldRetried: 3, FieldFailedPrefix + "timeout": 4,
		}},
		StatsDelta{Sink: testSink, LastError: "old", ErrorAge: time.Hour, Counters: map[string]int64{FieldDelivered: 5}},
		StatsDelta{Sink: "failing", LastError: "12", Counters: map[string]int64{FieldDropped: 6}},
	)
	if _, err := s.States.Disable(t.Context(), "failing", "gone", "f1", disabledAt); err != nil {
		t.Fatal(err)
	}
	got, err := s.Stats.Read(t.Context(), []string{"unknown", testSink, "failing"})
	if err != nil {
		t.Fatal(err)
	}
	active := SinkState{State: StateActive}
	want := []Stats{
		{SinkState: active},
		{
			SinkState: active, Scheduled: 1, DeadLetters: 2, InDigests: 1, Delivered: 7, Retried: 3, LastError: "new",
			Failed: map[string]int64{"timeout": 4},
		},
		{
			SinkState: SinkState{State: StateDisabled, Reason: "gone", Since: disabledAt, Fingerprint: "f1"},
			Dropped:   6, LastError: "12",
		},
	}
	times := cmpopts.IgnoreFields(Stats{}, "OldestRetryAge", "LastSuccess", "LastErrorAt")
	if diff := cmp.Diff(want, got, times); diff != "" {
		t.Errorf("statistics (-want +got):\n%s", diff)
	}
	st := got[1]
	if st.OldestRetryAge < 59*time.Minute || st.OldestRetryAge > 2*time.Hour {
		t.Errorf("got oldest age %s, want an hour", st.OldestRetryAge)
	}
	if gap := st.LastSuccess.Sub(st.LastErrorAt); gap < 59*time.Second || gap > 10*time.Minute {
		t.Errorf("got %s from the last error to the last success, want a minute", gap)
	}
	if !got[0].LastSuccess.IsZero() || !got[2].LastSuccess.IsZero() || got[2].LastErrorAt.IsZero() {
		t.Errorf("got times %+v, want only an error of the last sink", got)
	}
}

func TestStats_AddReportsDamagedSink(t *testing.T) {
	t.Parallel()
	s := startStore(t)
	fields := map[string]string{FieldDelivered: "many", FieldRetried: "1", fieldLastSuccess: "today"}
	if err := s.Commands().HSet(t.Context(), StatsKey(s.Keys(), "damaged"), fields).Err(); err != nil {
		t.Fatal(err)
	}
	one := map[string]int64{FieldDelivered: 1}
	var failed []int
	err := s.Stats.Add(t.Context(), []StatsDelta{{Sink: testSink, Counters: one}, {Sink: "damaged", Counters: one}},
		func(i int) { failed = append(failed, i) })
	if err == nil || !slices.Equal(failed, []int{1}) {
		t.Errorf("got failed %v, %v, want 1 and an error", failed, err)
	}
	got, err := s.Stats.Read(t.Context(), []string{testSink, "damaged"})
	if err != nil || got[0].Delivered != 1 || got[1].Delivered != 0 || got[1].Retried != 1 {
		t.Errorf("got %+v, %v, want 1 delivered and 1 retried", got, err)
	}
}

func TestStore_ForgetRemovesData(t *testing.T) {
	t.Parallel()
	s := startStore(t)
	hasData := func(sink string) bool {
		t.Helper()
		has, err := s.Stats.HasData(t.Context(), sink)
		if err != nil {
			t.Fatal(err)
		}
		return has
	}
	for _, c := range []struct {
		name                   string
		fill                   func(context.Context)
		deadLetters            bool
		hasBefore, remainAfter bool
	}{
		{"nothing", func(context.Context) {}, false, false, false},
		{"statistics", func(context.Context) {
			s.addStats(t, StatsDelta{Sink: testSink, Counters: map[string]int64{FieldDelivered: 1}})
		}, false, false, false},
		{"state", func(ctx context.Context) {
			if err := s.States.Pause(ctx, testSink); err != nil {
				t.Fatal(err)
			}
		}, false, true, false},
		{"scheduled", func(context.Context) {
			s.schedule(t, "a", OrderingHub.StoredKey(conntest.Notification("h1", 1)), 0)
		}, false, true, false},
		{"digest", func(context.Context) { s.openDigest(t) }, false, true, false},
		{"cooldown", func(ctx context.Context) {
			if err := s.Rates.Cooldown(ctx, testSink, RateLimit{}, time.Hour); err != nil {
				t.Fatal(err)
			}
		}, false, false, false},
		{"batch", func(ctx context.Context) {
			items := []BatchItem{{Notification: conntest.Notification("h1", 1)}}
			if _, err := s.Batches.Seal(ctx, testSink, "b", items, time.Minute, time.Now()); err != nil {
				t.Fatal(err)
			}
		}, false, true, false},
		{"kept dead letters", func(context.Context) { s.addDeadLetters(t, "d1") }, false, true, true},
		{"dead letters", func(context.Context) { s.addDeadLetters(t, "d2") }, true, true, false},
	} {
		c.fill(t.Context())
		if got := hasData(testSink); got != c.hasBefore {
			t.Errorf("%s: HasData: got %t, want %t", c.name, got, c.hasBefore)
		}
		if err := s.Forget(t.Context(), testSink, c.deadLetters); err != nil {
			t.Fatal(err)
		}
		if got := hasData(testSink); got != c.remainAfter {
			t.Errorf("%s: HasData after Forget: got %t, want %t", c.name, got, c.remainAfter)
		}
		left, err := s.Commands().Keys(t.Context(), "*"+testSink+"*").Result()
		var want []string
		if c.remainAfter {
			want = []string{DeadLetterIndexKey(s.Keys(), testSink), DeadLettersKey(s.Keys(), testSink)}
		}
		if slices.Sort(left); err != nil || !slices.Equal(left, want) {
			t.Errorf("%s: got keys %v, %v, want %v", c.name, left, err, want)
		}
	}
}

func TestStore_ForgetKeepsOtherSinks(t *testing.T) {
	t.Parallel()
	s := startStore(t)
	s.schedule(t, "a", "", 0)
	s.addDeadLetters(t, "d")
	if err := s.Forget(t.Context(), "bill", true); err != nil {
		t.Fatal(err)
	}
	st, err := s.Stats.Read(t.Context(), []string{testSink})
	if err != nil || st[0].Scheduled != 1 || st[0].DeadLetters != 1 {
		t.Errorf("got %+v, %v, want 1 scheduled and 1 dead letter", st, err)
	}
}
