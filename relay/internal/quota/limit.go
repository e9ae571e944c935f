package quota

import "time"

// Amount is a number of tokens. Count is the number of notifications or requests, whichever the limit is for.
type Amount struct{ Count, Bytes int64 }

func (a Amount) plus(b Amount) Amount {
	return Amount{a.Count + b.Count, a.Bytes + b.Bytes}
}

func (a Amount) minus(b Amount) Amount {
	return Amount{a.Count - b.Count, a.Bytes - b.Bytes}
}

// Limit is the rate of a token bucket.
type Limit struct {
	// PerSecond is the rate. A zero field is no limit.
	PerSecond Amount
	// Burst is the time whose tokens may be spent at once after a pause. A single request may be larger than that: it
	// is accepted when the bucket is full, and the next request waits until its tokens are refilled.
	Burst time.Duration
}

// IsSet reports whether there is a limit.
func (l Limit) IsSet() bool { return l.PerSecond.Count > 0 || l.PerSecond.Bytes > 0 }

// leaseSize returns the tokens of a tenth of a second.
func (l Limit) leaseSize() Amount {
	return Amount{l.PerSecond.Count / 10, l.PerSecond.Bytes / 10}
}

// masked returns a without the parts that have no limit.
func (l Limit) masked(a Amount) Amount {
	if l.PerSecond.Count <= 0 {
		a.Count = 0
	}
	if l.PerSecond.Bytes <= 0 {
		a.Bytes = 0
	}
	return a
}
