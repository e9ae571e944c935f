package auth

import (
	"net/netip"
	"sync"
	"time"

	"golang.org/x/time/rate"

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
