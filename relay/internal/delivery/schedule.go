package delivery

import "time"

const (
	// maxRetryAfter bounds what a far side may ask us to wait.
	maxRetryAfter = 24 * time.Hour
	jitter        = 0.2
)

// Schedule says when a failed delivery is tried again. Its zero value never does.
type Schedule struct {
	// Delays are the times before the second, third, … attempt; each varies by a fifth to both sides.
	Delays []time.Duration
	// MaxAge bounds the time from the first attempt to the last; zero is no bound.
	MaxAge time.Duration
	// MaxAttempts bounds the attempts, the first included. Where it is more than Waits make, the last of them repeats;
	// zero is as many as Waits make.
	MaxAttempts int
}

// Next returns how long to wait after the failed attempt (counted from 1) of a delivery whose first attempt is age
// ago, or false where there is to be no other. named is the least time that the far side asked for, at most a day of
// which is honoured; random is in [0, 1).
func (s Schedule) Next(attempt int, age, named time.Duration, random float64) (time.Duration, bool) {
	last := len(s.Delays)
	switch {
	case attempt < 1 || last == 0,
		s.MaxAttempts == 0 && attempt > last,
		s.MaxAttempts > 0 && attempt >= s.MaxAttempts:
		return 0, false
	}
	wait := time.Duration(float64(s.Delays[min(attempt, last)-1]) * (1 - jitter + 2*jitter*random))
	wait = max(wait, min(named, maxRetryAfter), 0)
	if s.MaxAge > 0 && age+wait > s.MaxAge {
		return 0, false
	}
	return wait, true
}
