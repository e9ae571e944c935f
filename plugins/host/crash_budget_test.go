package host

import (
	"testing"
	"time"
)

func TestCrashBudget(t *testing.T) {
	t.Parallel()
	start := time.Unix(1_800_000_000, 0)
	for name, c := range map[string]struct {
		every time.Duration
		last  int // the crash that is one too many, 0 for none
	}{
		"at once":          {0, 6},
		"each second":      {time.Second, 6},
		"each minute":      {time.Minute, 8},
		"each ten minutes": {10 * time.Minute, 0},
	} {
		b := crashBudget{maxCrashes: 5}
		last := 0
		for i := range 1000 {
			if !b.recordCrash(start.Add(time.Duration(i) * c.every)) {
				last = i + 1
				break
			}
		}
		if last != c.last {
			t.Errorf("%s: given up at crash %d, want %d", name, last, c.last)
		}
	}
	b := crashBudget{maxCrashes: 5}
	b.leaveOneCrash(start)
	if !b.recordCrash(start) || b.recordCrash(start) {
		t.Error("one crash must be left after a revival, and no more")
	}
}

// The first call after a plugin was given up disables its sink. Calls that begin more than a second later start it again, because the
// sink was resumed.
func TestGiveUp_DecideCall(t *testing.T) {
	t.Parallel()
	at := time.Unix(1_800_000_000, 0)
	after := func(d time.Duration) time.Time { return at.Add(d) }
	for name, c := range map[string]struct {
		isTold     bool
		began, now time.Time
		mustTell   bool
		next       time.Time
	}{
		"waits for it":       {true, after(-time.Second), after(0), true, time.Time{}},
		"first":              {false, after(time.Second), after(4 * time.Second), true, time.Time{}},
		"first, much later":  {false, after(time.Minute), after(time.Minute), false, time.Time{}},
		"second, at once":    {true, after(0), after(time.Millisecond), false, after(retryAfterGiveUp)},
		"second, after that": {true, after(2 * time.Second), after(2 * time.Second), false, time.Time{}},
	} {
		g := giveUp{at, c.isTold}
		mustTell, next := g.decideCall(c.began, c.now)
		if mustTell != c.mustTell || !next.Equal(c.next) || g.isTold != (c.isTold || c.mustTell) {
			t.Errorf("%s: got %t, %v, told %t, want %t, %v", name, mustTell, next, g.isTold, c.mustTell, c.next)
		}
	}
}
