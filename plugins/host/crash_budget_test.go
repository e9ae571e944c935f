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
