package store

import (
	"fmt"
	"strings"
	"testing"

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
	add := func(account string, i int) {
		d := newDelivery(fmt.Sprint(account, i))
		d.Notifications[0].Account = account
		s.addDeadLetter(t, Claim{Sink: testSink}, limit, d)
	}
	expect := func(when string, want map[string]int) {
		t.Helper()
		ids, _ := s.listDeadLetters(t, Selection{Limit: MaxPage})
		got := map[string]int{}
		for _, id := range ids {
			got[strings.TrimRight(id, "0123456789")]++
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%s: got %v, want %v", when, got, want)
		}
	}
	for i := range ofOthers {
		add("other", i)
	}
	for i := range 3 * limit {
		add("flood", i)
	}
	expect("after a flood", map[string]int{"other": ofOthers, "flood": limit - ofOthers})
	if _, err := s.DeadLetters.Get(t.Context(), testSink, fmt.Sprint("flood", 3*limit-1)); err != nil {
		t.Errorf("the newest: %v", err)
	}
	drop := func(n, share int) {
		t.Helper()
		dropped, err := s.DeadLetters.DropOldest(t.Context(), testSink, n, DeadLetterLimit{AccountShare: share})
		if err != nil || dropped != n {
			t.Errorf("got %d dropped, %v, want %d", dropped, err, n)
		}
	}
	drop(limit-2*ofOthers, 50)
	expect("equal shares", map[string]int{"other": ofOthers, "flood": ofOthers})
	drop(1, 50)
	expect("within the share", map[string]int{"other": ofOthers - 1, "flood": ofOthers})
	drop(1, 100)
	expect("without a share", map[string]int{"other": ofOthers - 2, "flood": ofOthers})
	if dropped, err := s.DeadLetters.DropOldest(t.Context(), "unknown", 1, DeadLetterLimit{}); err != nil || dropped != 0 {
		t.Errorf("without dead letters: got %d, %v", dropped, err)
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
