package dispatch

import (
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/eventlog"
)

func TestAccountShare(t *testing.T) {
	t.Parallel()
	s := newAccountShare(20, 50)
	s.update(make(map[string]int64))
	for range 10 {
		if !s.admit("a") {
			t.Fatal("an entry within the limit was rejected")
		}
	}
	if s.mustCount {
		t.Error("the queue must be counted before the limit is reached")
	}
	if s.admit("a"); !s.mustCount {
		t.Error("the queue is not counted at the limit")
	}
	for name, tt := range map[string]struct {
		counts   map[string]int64
		exceeded bool
	}{
		"others left":            {map[string]int64{"a": 11, "b": 1}, true},
		"at the limit":           {map[string]int64{"a": 10, "b": 1}, true},
		"below the limit":        {map[string]int64{"a": 9, "b": 1}, false},
		"others without account": {map[string]int64{"a": 1, "": 100}, false},
		"alone":                  {map[string]int64{"a": 100}, false},
	} {
		s.update(tt.counts)
		if s.admit("a") == tt.exceeded {
			t.Errorf("%s: admitted is %t", name, !tt.exceeded)
		}
		if !s.admit("b") {
			t.Errorf("%s: another account was rejected", name)
		}
	}
	for name, unlimited := range map[string]accountShare{
		"no backlog": newAccountShare(0, 50), "a share of 100 percent": newAccountShare(20, 100),
	} {
		for range 100 {
			if !unlimited.admit("a") || !unlimited.admit("b") {
				t.Fatalf("%s: an entry was rejected", name)
			}
		}
		if unlimited.mustCountNow {
			t.Errorf("%s: the queue must be counted before each entry", name)
		}
	}
}

// Accounts whose entries have left the queue do not stay in memory.
func TestAccountShare_LimitsAccounts(t *testing.T) {
	t.Parallel()
	s := newAccountShare(1_000_000, 50)
	s.update(map[string]int64{})
	for i := range maxUncountedAccounts + 1 {
		if s.mustCount {
			t.Fatalf("the queue is counted after %d accounts", i)
		}
		s.admit(fmt.Sprint("account-", i))
	}
	if !s.mustCount {
		t.Error("the queue is not counted")
	}
	s.update(s.counts) // all are still there
	if s.admit("one more"); s.mustCount {
		t.Error("the queue is counted again, although nothing has left it")
	}
}

// An account that publishes more than the backlog cannot push the entries of another one out.
func TestDispatcher_AccountShare(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	c := &counts{enqueued: map[string]int64{}, dropped: map[string]int64{}}
	publish := func(account string, from, n int) { e.publishFor(t, account, from, n) }
	o := e.options(Sink{Name: "s", FromStart: true, Backlog: 100, AccountShare: 50}, Sink{Name: "all", FromStart: true})
	o.Observer = c
	var excluded atomic.Int64
	o.RecordExcluded = func(n *relay.Notification, sink string) {
		if n.Account == "flood" && sink == "s" {
			excluded.Add(1)
		}
	}
	run := func() (stop func()) { return e.run(o, true) }
	stop := run()
	publish("victim", 0, 20)
	publish("flood", 0, 60)
	testkit.WaitForValue(t, "the first entries", 80, func() int64 { return e.queueLength("all") })
	stop() // the next dispatcher counts the queue at its start
	run()
	for i := range 20 {
		publish("flood", 60+100*i, 100)
	}
	publish("victim", 20, 20)
	testkit.WaitForValue(t, "all entries", 80+2000+20, func() int64 { return e.queueLength("all") })
	var victim, flood int
	// The last entries may still be dropped, to make room.
	testkit.Eventually(t, "a count and a record of each dropped entry of the flood", func() error {
		victim, flood = e.countQueue("s")
		c.mu.Lock()
		defer c.mu.Unlock()
		if want := int64(2060 - flood); c.dropped["s"] != want || excluded.Load() != want {
			return fmt.Errorf("counted %d and recorded %d, want %d", c.dropped["s"], excluded.Load(), want)
		}
		return nil
	})
	if victim != 40 || flood < 50 || flood > 60 {
		t.Errorf("the queue has %d entries of the victim and %d of the flood, want 40 and 50 to 60", victim, flood)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.dropped["all"] != 0 {
		t.Errorf("dropped %v, want only entries of the flood in the queue of s", c.dropped)
	}
}

// Between two counts, an account just below its share can fill the queue, but not push out the entries of others.
func TestDispatcher_AccountShareBetweenCounts(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	o := e.options(Sink{Name: "s", FromStart: true, Backlog: 100, AccountShare: 50}, Sink{Name: "all", FromStart: true})
	e.publishFor(t, "victim", 0, 20)
	e.publishFor(t, "flood", 0, 45)
	e.run(o, true) // counts the queue at its start
	testkit.WaitForValue(t, "the first entries", 65, func() int64 { return e.queueLength("all") })
	e.publishFor(t, "flood", 45, 7)
	e.publishFor(t, "flood", 52, 2000)
	testkit.WaitForValue(t, "all entries", 65+2007, func() int64 { return e.queueLength("all") })
	if victim, flood := e.countQueue("s"); victim != 20 || flood > 81 {
		t.Errorf("the queue has %d entries of the victim and %d of the flood, want 20 and at most 81", victim, flood)
	}
}

// An account that has taken the free part of a queue loses its newest entries once others need it, even if theirs are
// the oldest of the queue.
func TestDispatcher_DropsEntriesAboveShareFirst(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	var excluded atomic.Int64
	o := e.options(Sink{Name: "s", FromStart: true, Backlog: 100, AccountShare: 50}, Sink{Name: "all", FromStart: true})
	o.RecordExcluded = func(n *relay.Notification, sink string) {
		if n.Account == "flood" && sink == "s" && n.ID != "" && n.Topic == "x" && n.Cursor != "" {
			excluded.Add(1)
		}
	}
	e.publishFor(t, "victim", 0, 20)
	e.publishFor(t, "flood", 0, 80)
	e.run(o, true)
	testkit.WaitForValue(t, "the first entries", 100, func() int64 { return e.queueLength("all") })
	for i := range 30 {
		e.publishFor(t, "victim", 20+i, 1)
	}
	testkit.WaitForValue(t, "all entries", 130, func() int64 { return e.queueLength("all") })
	var victim, flood int
	testkit.Eventually(t, "a record of each dropped entry of the flood", func() error {
		victim, flood = e.countQueue("s")
		if want := int64(80 - flood); excluded.Load() != want {
			return fmt.Errorf("recorded %d, want %d", excluded.Load(), want)
		}
		return nil
	})
	if victim != 50 || flood < 40 || flood > 50 {
		t.Errorf("the queue has %d entries of the victim and %d of the flood, want 50 and 40 to 50", victim, flood)
	}
	if queued := e.readQueue("s"); !slices.Contains(queued, "flood-0") {
		t.Error("the oldest entry of the flood was dropped, want the newest")
	}
}

// publishFor publishes n events of an account.
func (e *env) publishFor(t *testing.T, account string, from, n int) {
	t.Helper()
	var list []relay.Notification
	for i := range n {
		list = append(list, relay.Notification{
			ID: fmt.Sprintf("%s-%d", account, from+i), Topic: "x", Hub: "h", Account: account, Data: []byte("{}"),
		})
	}
	if _, err := e.log.Append(t.Context(), eventlog.AppendRequest{Hub: "h", Notifications: list}); err != nil {
		t.Fatal(err)
	}
}

// countQueue returns the numbers of entries of the account victim and of others in the queue of a sink.
func (e *env) countQueue(sink string) (victim, others int) {
	for _, id := range e.readQueue(sink) {
		if strings.HasPrefix(id, "victim") {
			victim++
		} else {
			others++
		}
	}
	return victim, others
}
