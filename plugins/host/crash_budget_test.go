package host

import (
	"errors"
	"reflect"
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

// The first call after a plugin was given up gets an error, which disables its sink. Calls that begin more than a second later start
// it again, because the sink was resumed.
func TestGiveUp_CheckCall(t *testing.T) {
	t.Parallel()
	at := time.Unix(1_800_000_000, 0)
	cause := errors.New("crashed")
	for name, c := range map[string]struct {
		isReported bool
		began, now time.Duration // after at
		want       error
	}{
		"in progress":          {true, -time.Second, 0, &gaveUpError{cause}},
		"first":                {false, time.Second, 4 * time.Second, &gaveUpError{cause}},
		"first, much later":    {false, time.Minute, time.Minute, nil},
		"second, at once":      {true, 0, time.Millisecond, &notRunningError{Status{Reason: cause, Next: at.Add(retryAfterGiveUp)}}},
		"second, after resume": {true, 2 * time.Second, 2 * time.Second, nil},
	} {
		g := giveUp{at, c.isReported}
		got := g.checkCall(Status{Reason: cause}, at.Add(c.began), at.Add(c.now))
		if !reflect.DeepEqual(got, c.want) || name == "first" && !g.isReported {
			t.Errorf("%s: got %v, want %v", name, got, c.want)
		}
	}
}
