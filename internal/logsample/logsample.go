// Package logsample limits how often a message is logged.
//
// It counts what it suppresses. It does not log.
package logsample

import (
	"sync"
	"time"
)

// Limiter allows a number of log records per interval. It may be used concurrently, and must not be copied.
type Limiter struct {
	now      func() time.Time
	interval time.Duration
	max      int

	mu         sync.Mutex
	start      time.Time // of the current interval
	allowed    int       // in the current interval
	suppressed int       // since the last record
}

// New returns a Limiter that allows max records per interval. A nil now means [time.Now].
func New(maxRecords int, interval time.Duration, now func() time.Time) *Limiter {
	if now == nil {
		now = time.Now
	}
	return &Limiter{now: now, interval: interval, max: maxRecords}
}

// Allow reports whether to log a record, and how many were suppressed since the last one.
func (l *Limiter) Allow() (suppressed int, ok bool) {
	now := l.now()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.allowed == 0 || now.Sub(l.start).Abs() >= l.interval {
		l.start, l.allowed = now, 0
	}
	if l.allowed >= l.max {
		l.suppressed++
		return 0, false
	}
	l.allowed++
	suppressed, l.suppressed = l.suppressed, 0
	return suppressed, true
}
