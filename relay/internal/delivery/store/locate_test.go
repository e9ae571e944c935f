package store

import (
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
	letter, err := NewDeadLetter("x", NewRecord(newDelivery("x"), time.Now()), "because", "", time.Now())
	if err == nil {
		_, _, err = s.DeadLetters.Add(t.Context(), Claim{Sink: testSink, ID: "x"}, 0, letter)
	}
	if err != nil {
		t.Fatal(err)
	}
	if got := locate("x"); got != (Location{IsDead: true}) {
		t.Errorf("a dead letter: got %+v", got)
	}
}
