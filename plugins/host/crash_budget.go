package host

import (
	"math"
	"time"
)

// crashHalfLife is the time after which half of the crashes expire.
const crashHalfLife = 5 * time.Minute

// crashBudget counts crashes that expire over time, so rare crashes are always allowed.
type crashBudget struct {
	maxCrashes int
	score      float64
	at         time.Time
}

func (b *crashBudget) decayScore(now time.Time) {
	if !b.at.IsZero() {
		b.score *= math.Exp2(-now.Sub(b.at).Minutes() / crashHalfLife.Minutes())
	}
	b.at = now
}

// recordCrash counts one crash and reports whether the plugin may be started again.
func (b *crashBudget) recordCrash(now time.Time) bool {
	b.decayScore(now)
	b.score++
	return b.score <= float64(b.maxCrashes)
}

// leaveOneCrash allows one more crash, so an operator can try a fixed plugin and soon sees whether it works.
func (b *crashBudget) leaveOneCrash(now time.Time) { b.score, b.at = float64(b.maxCrashes)-1, now }
