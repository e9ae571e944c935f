package host

import (
	"math"
	"time"
)

// crashHalfLife is the time in which half of the crashes are forgotten.
const crashHalfLife = 5 * time.Minute

// crashBudget counts crashes, and forgets them: a plugin that crashes now and then may do so for ever.
type crashBudget struct {
	maxCrashes int
	score      float64
	at         time.Time
}

func (b *crashBudget) decay(now time.Time) {
	if !b.at.IsZero() {
		b.score *= math.Exp2(-now.Sub(b.at).Minutes() / crashHalfLife.Minutes())
	}
	b.at = now
}

// recordCrash counts one crash and tells whether the plugin may be started again.
func (b *crashBudget) recordCrash(now time.Time) bool {
	b.decay(now)
	b.score++
	return b.score <= float64(b.maxCrashes)
}

// leaveOneCrash leaves one crash, so that somebody who has mended the plugin can try it, and soon knows if he has not.
func (b *crashBudget) leaveOneCrash(now time.Time) { b.score, b.at = float64(b.maxCrashes)-1, now }

// backoff is the time to wait after so many failures in a row, the first being 1.
func backoff(failures int, first, most time.Duration) time.Duration {
	d := first
	for range failures - 1 {
		if d >= most {
			break
		}
		d *= 2
	}
	return min(d, most)
}
