package auth

import (
	"net/netip"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/clientaddr"
)

const (
	// failureBurst is the number of failed authentications of one address that are answered at once.
	failureBurst = 100
	// failuresPerSecond is the rate of those that follow.
	failuresPerSecond = 1
	// maxFailingAddrs bounds the memory. Beyond it, all addresses start again with a full burst.
	maxFailingAddrs = 10_000
)

// FailureThrottle limits the failed authentications of each client address (see [clientaddr.Group]), so that guessing
// takes long and fills no log. It does not limit valid credentials. The zero value is ready, and may be used
// concurrently.
type FailureThrottle struct {
	mu    sync.Mutex
	addrs map[netip.Prefix]*rate.Limiter
}

// NewThrottledError returns 429.rate-limiting for an address that has failed too often.
func NewThrottledError() *relay.Error {
	return relay.NewError(relay.CodeRateLimiting,
		"too many requests from this address had invalid credentials; correct them, then try again").
		WithExtra("per", "ip")
}

// Throttled returns the time until the address may fail again, or 0 if it may now. It counts nothing.
func (t *FailureThrottle) Throttled(addr netip.Addr) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	l := t.addrs[clientaddr.Group(addr)]
	if l == nil || l.Tokens() >= 1 {
		return 0
	}
	return time.Second / failuresPerSecond
}

// Fail counts a failed authentication. It returns the time until the address may fail again, or 0 if this failure is
// within the limit.
func (t *FailureThrottle) Fail(addr netip.Addr) time.Duration {
	group := clientaddr.Group(addr)
	t.mu.Lock()
	l := t.addrs[group]
	if l == nil {
		if len(t.addrs) >= maxFailingAddrs || t.addrs == nil {
			t.addrs = make(map[netip.Prefix]*rate.Limiter)
		}
		l = rate.NewLimiter(failuresPerSecond, failureBurst)
		t.addrs[group] = l
	}
	t.mu.Unlock()
	r := l.Reserve()
	wait := r.Delay()
	if wait > 0 {
		r.Cancel()
	}
	return wait
}
