package quota

import (
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// LocalLimiter limits how often each key occurs on this node. Unlike [Limiter] it needs no Redis. It may be used
// concurrently.
type LocalLimiter[K comparable] struct {
	perSecond rate.Limit
	burst     int
	maxKeys   int

	mu    sync.Mutex
	byKey map[K]*rate.Limiter
}

// NewLocalLimiter returns a limiter with a rate and a burst for each key. Beyond maxKeys keys, all start again with a full
// burst.
func NewLocalLimiter[K comparable](perSecond float64, burst, maxKeys int) *LocalLimiter[K] {
	return &LocalLimiter[K]{
		perSecond: rate.Limit(perSecond), burst: burst, maxKeys: maxKeys, byKey: make(map[K]*rate.Limiter),
	}
}

// Take counts an occurrence of a key. It returns 0, or the time until the key may occur again, and then counts nothing.
func (l *LocalLimiter[K]) Take(key K) time.Duration {
	l.mu.Lock()
	limiter := l.byKey[key]
	if limiter == nil {
		if len(l.byKey) >= l.maxKeys {
			clear(l.byKey)
		}
		limiter = rate.NewLimiter(l.perSecond, l.burst)
		l.byKey[key] = limiter
	}
	l.mu.Unlock()
	r := limiter.Reserve()
	wait := r.Delay()
	if wait > 0 {
		r.Cancel()
	}
	return wait
}

// IsExhausted reports whether Take would return a wait for the key. It counts nothing.
func (l *LocalLimiter[K]) IsExhausted(key K) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	limiter := l.byKey[key]
	return limiter != nil && limiter.Tokens() < 1
}
