package audit

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hubrelay/hubrelay/internal/redistest"
	"github.com/hubrelay/hubrelay/internal/testkit"
)

func revocation() Entry {
	return Entry{Actor: "key ops", Action: ActionRevokeToken, Address: "192.0.2.1", Result: ResultOK}
}

func recordTimes(l *Log, n int, e Entry) {
	for range n {
		l.Record(e)
	}
}

// repeats returns the counts of the stored entries.
func (s *memoryStore) repeats(t *testing.T) (counts []int) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, line := range s.lines {
		var e Entry
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatal(err)
		}
		counts = append(counts, e.Repeated)
	}
	return counts
}

func expectRepeats(t *testing.T, s *memoryStore, want ...int) {
	t.Helper()
	synctest.Wait()
	got := s.repeats(t)
	if len(got) != len(want) {
		t.Fatalf("got the counts %v, want %v", got, want)
	}
	for i := range got {
		if got[i] != want[i] {
			t.Fatalf("got the counts %v, want %v", got, want)
		}
	}
}

func TestLog_SummarizesRepeatedEntriesOfKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &memoryStore{}
		l := NewLog(Options{Log: testkit.Log(t)})
		stop := runLog(t, l, store)
		for i := range 100 {
			e := revocation()
			e.Detail = strconv.Itoa(i) // a detail makes no difference
			l.Record(e)
		}
		expectRepeats(t, store, 0) // the first is written at once
		time.Sleep(summaryWindow + 2*summaryTick)
		expectRepeats(t, store, 0, 99)
		recordTimes(l, 1, revocation()) // a new window
		expectRepeats(t, store, 0, 99, 0)
		time.Sleep(summaryWindow + 2*summaryTick)
		expectRepeats(t, store, 0, 99, 0)
		recordTimes(l, 4, revocation())
		stop() // writes the open summaries
		expectRepeats(t, store, 0, 99, 0, 0, 3)
	})
}

// A window also ends if no goroutine of the log runs.
func TestLog_EndsWindowWithNextEntry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &memoryStore{}
		l := NewLog(Options{Log: testkit.Log(t)})
		recordTimes(l, 3, revocation())
		time.Sleep(summaryWindow)
		recordTimes(l, 1, revocation())
		runLog(t, l, store)()
		expectRepeats(t, store, 0, 2, 0)
	})
}

func TestLog_KeepsDifferentEntries(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		change func(e *Entry)
		want   int // entries of a revocation and two changed ones, before the window ends
	}{
		"same":           {func(*Entry) {}, 1},
		"address":        {func(e *Entry) { e.Address = "192.0.2.2" }, 2},
		"result":         {func(e *Entry) { e.Result = "401.auth-invalid" }, 2},
		"action":         {func(e *Entry) { e.Action = ActionRequest }, 2},
		"target":         {func(e *Entry) { e.Target = "instance-1" }, 2},
		"key":            {func(e *Entry) { e.Actor = "key other" }, 2},
		"admin":          {func(e *Entry) { e.Actor = "admin ops" }, 3},
		"configuration":  {func(e *Entry) { e.Actor = "configuration" }, 3},
		"authentication": {func(e *Entry) { e.Actor, e.Action = "", ActionAuthenticate }, 3},
	} {
		l := NewLog(Options{Log: testkit.Log(t)})
		l.Record(revocation())
		e := revocation()
		tt.change(&e)
		recordTimes(l, 2, e)
		if got := len(l.store.entries); got != tt.want {
			t.Errorf("%s: got %d entries, want %d", name, got, tt.want)
		}
	}
}

func TestLog_LimitsSummaries(t *testing.T) {
	t.Parallel()
	l := NewLog(Options{Log: testkit.Log(t)})
	for i := range maxSummaries + 1 {
		e := revocation()
		e.Actor = "key " + strconv.Itoa(i)
		recordTimes(l, 2, e)
	}
	if got := len(l.summaries.windows); got != maxSummaries {
		t.Errorf("got %d windows, want %d", got, maxSummaries)
	}
	if got := len(l.store.entries); got != maxSummaries+2 {
		t.Errorf("got %d entries, want %d", got, maxSummaries+2)
	}
}

func TestStore_SearchReturnsSummary(t *testing.T) {
	t.Parallel()
	store := newTestStore(t, redistest.Start(t))
	l := NewLog(Options{Log: testkit.Log(t)})
	stop := runLog(t, l, store)
	recordTimes(l, 5, revocation())
	stop()
	list, _, err := store.Search(t.Context(), Filter{Action: "token", Limit: 10})
	if err != nil || len(list) != 2 || list[0].Repeated != 4 || list[1].Repeated != 0 || list[0].Address != "192.0.2.1" {
		t.Errorf("got %+v, %v; want a summary of 4 entries after the first one", list, err)
	}
}

// A key cannot fill the log with rejected actions, even if each has another target. Those that were allowed are all recorded.
func TestLog_SummarizesRejectedTargetsOfKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &memoryStore{}
		l := NewLog(Options{Log: testkit.Log(t)})
		stop := runLog(t, l, store)
		const n = 1000
		for i := range n {
			l.Record(Entry{Actor: "key ops", Action: ActionCreateJob, Target: strconv.Itoa(i), Result: "404.container"})
		}
		time.Sleep(summaryWindow + 2*summaryTick)
		want := make([]int, maxRejectedTargets+2) // with the first one without a target, and its summary
		want[len(want)-1] = n - maxRejectedTargets - 1
		expectRepeats(t, store, want...)
		if len(l.summaries.targets) != 0 {
			t.Errorf("got %v, want no open windows", l.summaries.targets)
		}
		for i := range n {
			l.Record(Entry{Actor: "key ops", Action: ActionCreateJob, Target: strconv.Itoa(i), Result: ResultOK})
		}
		expectRepeats(t, store, append(want, make([]int, n)...)...)
		stop()
	})
}

// Many keys cannot fill the log with rejected actions either. An identity provider can issue any number of them to an account.
func TestLog_SummarizesRejectedActionsOfManyKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &memoryStore{}
		l := NewLog(Options{Log: testkit.Log(t)})
		stop := runLog(t, l, store)
		const keys, targets = 1000, 10
		for i := range keys * targets {
			l.Record(Entry{
				Actor: fmt.Sprint("key ", i%keys), Owner: fmt.Sprint("key ", i%keys), Action: ActionCreateJob, Target: strconv.Itoa(i), Result: "403.permissions",
			})
		}
		l.Record(Entry{Actor: "key ops", Action: ActionCreateJob, Target: "moved", Result: ResultOK})
		time.Sleep(summaryWindow + 2*summaryTick)
		want := make([]int, maxWithoutEffect+3) // with the first one of many keys, the successful action, and the summary
		want[len(want)-1] = keys*targets - maxWithoutEffect - 1
		expectRepeats(t, store, want...)
		if last := store.lines[len(want)-1]; !strings.Contains(last, `"key *"`) || !strings.Contains(last, "403.permissions") {
			t.Errorf("got the summary %s", last)
		}
		if s := &l.summaries; len(s.targets) != 0 || len(s.owners) != 0 || s.withoutEffect != 0 {
			t.Errorf("got %v, %v and %d, want no open windows", s.targets, s.owners, s.withoutEffect)
		}
		stop()
	})
}

// An account with many keys uses up its own share only. The rejected actions of others still name their keys.
func TestLog_SummarizesRejectedActionsOfAccount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &memoryStore{}
		l := NewLog(Options{Log: testkit.Log(t)})
		stop := runLog(t, l, store)
		const keys = 1000
		for i := range keys {
			l.Record(Entry{
				Actor: fmt.Sprint("key ", i), AccountID: "acme", Owner: "account acme", Action: ActionCreateJob,
				Result: "403.permissions",
			})
		}
		l.Record(Entry{
			Actor: "key other", AccountID: "other", Owner: "account other", Action: ActionCreateJob, Result: "403.permissions",
		})
		time.Sleep(summaryWindow + 2*summaryTick)
		want := make([]int, maxWithoutEffectPerOwner+3) // with the first one of many keys, that of the other, and the summary
		want[len(want)-1] = keys - maxWithoutEffectPerOwner - 1
		expectRepeats(t, store, want...)
		if line := store.lines[len(want)-2]; !strings.Contains(line, `"actor":"key other","account_id":"other"`) ||
			strings.Contains(line, "Owner") {
			t.Errorf("got %s, want the entry of the other account", line)
		}
		if line := store.lines[len(want)-1]; !strings.Contains(line, `"actor":"key *","account_id":"acme"`) {
			t.Errorf("got %s, want the summary of the account", line)
		}
		stop()
	})
}

// A viewer cannot push out entries with rejected changes or sign-ins. Each change of an operator has its own entry.
func TestLog_SummarizesActionsOfViewer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &memoryStore{}
		l := NewLog(Options{Log: testkit.Log(t)})
		stop := runLog(t, l, store)
		const n = 1000
		signIn := Entry{Actor: "admin grafana", Action: ActionAdminAuthenticate, Result: ResultOK}
		pause := Entry{Actor: "admin grafana", Action: "sinks.pause", Target: "s", Result: "403.permissions"}
		recordTimes(l, n, signIn)
		recordTimes(l, n, pause)
		expectRepeats(t, store, 0, 0)
		pause.Actor, pause.Result = "admin oncall", ResultOK
		recordTimes(l, n, pause)
		expectRepeats(t, store, make([]int, n+2)...)
		time.Sleep(summaryWindow + 2*summaryTick)
		expectRepeats(t, store, append(make([]int, n+2), n-1, n-1)...)
		stop()
	})
}

// Failed authentications from any number of addresses do not fill the file.
func TestLog_LimitsUnknownActors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &memoryStore{}
		l := NewLog(Options{Log: testkit.Log(t)})
		stop := runLog(t, l, store)
		const n = 5000
		for i := range n {
			l.Record(Entry{Action: ActionAuthenticate, Address: strconv.Itoa(i), Result: "401.auth-invalid"})
			if i%100 == 99 {
				synctest.Wait() // until the queue has room
			}
		}
		time.Sleep(summaryWindow + 2*summaryTick)
		want := make([]int, unknownBurst+2) // with the first one without an address, and its summary
		want[len(want)-1] = n - unknownBurst - 1
		expectRepeats(t, store, want...)
		l.Record(Entry{Action: ActionAuthenticate, Address: "192.0.2.1", Result: "401.auth-invalid"})
		expectRepeats(t, store, append(want, 0)...)
		stop()
	})
}
