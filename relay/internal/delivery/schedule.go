package delivery

import "time"

const (
	// maxRetryAfter limits the delay that a destination may ask for.
	maxRetryAfter = 24 * time.Hour
	jitter        = 0.2
)

// Schedule contains the delays between attempts. Its zero value allows no retry.
type Schedule struct {
	// Delays are the times before the second, third, … attempt. Each varies by a fifth in both directions.
	Delays []time.Duration
	// MaxAge limits the time from the first attempt to the last. 0 means no limit.
	MaxAge time.Duration
	// MaxAttempts limits the attempts, including the first. If it exceeds the number of Delays, the last of them
	// repeats. 0 means one attempt more than there are Delays.
	MaxAttempts int
}

// Next returns the delay after a failed attempt, whose number starts at 1, of a delivery whose first attempt was age
// ago. It returns false if there is no other attempt. retryAfter is the minimum delay that the destination asked for,
// up to a day. random is in [0, 1).
func (s Schedule) Next(attempt int, age, retryAfter time.Duration, random float64) (time.Duration, bool) {
	last := len(s.Delays)
	switch {
	case attempt < 1 || last == 0,
		s.MaxAttempts == 0 && attempt > last,
		s.MaxAttempts > 0 && attempt >= s.MaxAttempts:
		return 0, false
	}
	delay := time.Duration(float64(s.Delays[min(attempt, last)-1]) * (1 - jitter + 2*jitter*random))
	delay = max(delay, min(retryAfter, maxRetryAfter), 0)
	if s.MaxAge > 0 && age+delay > s.MaxAge {
		return 0, false
	}
	return delay, true
}
