package store

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/relay"
)

// Dead letters of an account above its share are dropped before older ones of others, but not its newest one.
func TestDeadLetters_AccountShare(t *testing.T) {
	t.Parallel()
	s := startStore(t)
	const (
		ofOthers = 20
		limit    = 100
	)
	add := func(account string, i int, limit int64) {
		d := newDelivery(fmt.Sprint(account, i))
		d.Notifications[0].Account = account
		s.addDeadLetter(t, Claim{Sink: testSink}, limit, d)
	}
	expect := func(when string, want map[string]int) {
		t.Helper()
		if got := s.countDeadLetters(t); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%s: got %v, want %v", when, got, want)
		}
	}
	for i := range ofOthers {
		add("other", i, limit)
	}
	for i := range 3 * limit {
		add("flood", i, limit)
	}
	expect("after a flood", map[string]int{"other": ofOthers, "flood": limit - ofOthers})
	if _, err := s.DeadLetters.Get(t.Context(), testSink, fmt.Sprint("flood", 3*limit-1)); err != nil {
		t.Errorf("the newest: %v", err)
	}
	for i := range limit { // a lower limit drops few at once
		add("flood", i, 2*ofOthers)
	}
	expect("after a lower limit", map[string]int{"other": ofOthers, "flood": ofOthers})
	add("third", 0, 2*ofOthers)
	expect("no account above its share", map[string]int{"other": ofOthers - 1, "flood": ofOthers, "third": 1})
}

// countDeadLetters returns the number of dead letters by the letters of their IDs.
func (s *testStore) countDeadLetters(t *testing.T) map[string]int {
	t.Helper()
	ids, _ := s.listDeadLetters(t, Selection{Limit: MaxPage})
	got := map[string]int{}
	for _, id := range ids {
		got[strings.TrimRight(id, "0123456789")]++
	}
	return got
}

// Accounts within a small share are not dropped first, although a sample may have more of one. So the oldest go.
func TestDeadLetters_SmallShares(t *testing.T) {
	t.Parallel()
	s := startStore(t)
	const limit = 500
	for i := range 2 * limit {
		d := newDelivery(fmt.Sprintf("d%d", i))
		d.Notifications[0].Account = fmt.Sprint("account", i%20)
		r := NewRecord(d, time.Now())
		entry, err := NewDeadLetter(d.ID, r, "exhausted", "", time.Now())
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := s.DeadLetters.Add(t.Context(), Claim{Sink: testSink}, DeadLetterLimit{limit, 5}, entry); err != nil {
			t.Fatal(err)
		}
	}
	ids, _ := s.listDeadLetters(t, Selection{Limit: MaxPage})
	old := slices.IndexFunc(ids, func(id string) bool { return id == fmt.Sprint("d", limit+limit/10) })
	if len(ids) != limit || old < 0 || old > limit/5 {
		t.Errorf("got %d dead letters, and %d older than a recent one, want %d and few", len(ids), old, limit)
	}
}

// Dead letters without an account have no share, as in the queue of a sink, and an entry of an earlier build has no account.
func TestDeadLetters_ShareWithoutAccount(t *testing.T) {
	t.Parallel()
	s := startStore(t)
	s.addFields(t, "old", "id", "old", "account", "acme")
	for i := range 10 {
		d := newDelivery(fmt.Sprint(i))
		d.Notifications = []relay.Notification{d.Notifications[0]}
		d.Notifications[0].Account = ""
		s.addDeadLetter(t, Claim{Sink: testSink}, 10, d)
	}
	ids, _ := s.listDeadLetters(t, Selection{})
	if want := "[0 1 2 3 4 5 6 7 8 9]"; fmt.Sprint(ids) != want {
		t.Errorf("got %v, want %s", ids, want)
	}
}
