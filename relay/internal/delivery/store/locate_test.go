package store

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/relay"
)

func TestLocate(t *testing.T) {
	t.Parallel()
	s := startStore(t)
	locate := func(event string, ids ...string) Location {
		t.Helper()
		l, err := s.Locate(t.Context(), testSink, event, append(ids, event))
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	if got := locate("a"); got != (Location{}) {
		t.Errorf("an unknown event: got %+v", got)
	}
	s.schedule(t, "a", "", time.Hour)
	for _, ids := range [][]string{nil, {"other"}} {
		if got := locate("a", ids...); time.Until(got.DueAt) < 59*time.Minute || got.IsDead || !got.SealAt.IsZero() {
			t.Errorf("a scheduled event: got %+v", got)
		}
	}
	if got := locate("in-batch", "a"); got.DueAt.IsZero() {
		t.Errorf("a scheduled batch: got %+v", got)
	}
	n := relay.Notification{ID: "d", Topic: "job.created"}
	e := DigestEntry{Notification: n, Group: "g", MaxListed: 5, Wait: time.Hour, ArrivedAt: time.Now()}
	if _, err := s.Digests.Add(t.Context(), testSink, e); err != nil {
		t.Fatal(err)
	}
	if got := locate("d"); time.Until(got.SealAt) < 59*time.Minute || !got.DueAt.IsZero() {
		t.Errorf("an event in a digest: got %+v", got)
	}
	open, err := s.Digests.List(t.Context(), testSink, 0, 1)
	if err != nil {
		t.Fatal(err)
	}
	if got := locate(open[0].ID); time.Until(got.SealAt) < 59*time.Minute {
		t.Errorf("the ID of a digest: got %+v", got)
	}
	s.schedule(t, "first", "key", 0)
	s.schedule(t, "second", "key", 0)
	s.poll(t, PollRequest{Sink: testSink, MaxClaims: 1, Lease: time.Minute})
	if got := locate("first"); got != (Location{IsScheduled: true, IsRunning: true}) {
		t.Errorf("a claimed delivery: got %+v", got)
	}
	if got := locate("second"); got != (Location{IsScheduled: true, IsBlocked: true}) {
		t.Errorf("a delivery that waits for another one: got %+v", got)
	}
	letter, err := NewDeadLetter("x", NewRecord(newDelivery("x"), time.Now()), "because", "", time.Now())
	if err == nil {
		_, _, err = s.DeadLetters.Add(t.Context(), Claim{Sink: testSink, ID: "x"}, DeadLetterLimit{}, letter)
	}
	if err != nil {
		t.Fatal(err)
	}
	if got := locate("x"); got != (Location{IsDead: true}) {
		t.Errorf("a dead letter: got %+v", got)
	}
}

func TestRetries_List(t *testing.T) {
	t.Parallel()
	s := startStore(t)
	for i := range 25 {
		s.schedule(t, fmt.Sprintf("d%02d", i), "", time.Duration(i/10)*time.Hour) // many are due at the same time
	}
	if err := s.Commands().HSet(t.Context(), RecordsKey(s.Retries.keys, testSink), "d07", "damaged").Err(); err != nil {
		t.Fatal(err)
	}
	var ids []string
	for after := ""; ; {
		list, next, err := s.Retries.List(t.Context(), testSink, after, 7)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range list {
			ids = append(ids, d.ID)
			if (d.Record == nil) != (d.ID == "d07") || d.DueAt.IsZero() {
				t.Errorf("got %+v", d)
			}
		}
		if after = next; next == "" {
			break
		}
	}
	if !slices.IsSorted(ids) || len(slices.Compact(ids)) != 25 {
		t.Errorf("got %v, want all 25 in order", ids)
	}
	// The last delivery of a page is attempted again later.
	first, next, err := s.Retries.List(t.Context(), testSink, "", 5)
	if err != nil || len(first) != 5 {
		t.Fatalf("got %d, %v", len(first), err)
	}
	last := first[4].ID
	if err := s.Commands().ZIncrBy(t.Context(), RetryKey(s.Retries.keys, testSink), 5e7, last).Err(); err != nil {
		t.Fatal(err)
	}
	seen := make(map[string]bool)
	rest, _, err := s.Retries.List(t.Context(), testSink, next, 100)
	for _, d := range append(rest, first...) {
		seen[d.ID] = true
	}
	if err != nil || len(seen) != 25 {
		t.Errorf("after a rescheduled delivery: got %d different deliveries, %v, want 25", len(seen), err)
	}
	for _, after := range []string{"x", "x~y", "1", "NaN~y"} {
		if _, _, err := s.Retries.List(t.Context(), testSink, after, 7); !errors.Is(err, ErrSelection) {
			t.Errorf("%q: got %v", after, err)
		}
	}
	if list, _, err := s.Retries.List(t.Context(), testSink, "0~gone", 100); err != nil || len(list) != 25 {
		t.Errorf("after a delivery that has left the queue: got %d, %v, want all", len(list), err)
	}
}
