package auth

import (
	"net/netip"
	"time"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/clientaddr"
	"github.com/hubrelay/hubrelay/relay/internal/quota"
)

const (
	// failureBurst is the number of failed authentications of one address that are answered at once.
	failureBurst = 100
	// failuresPerSecond is the rate of those that follow.
	failuresPerSecond = 1
	// maxFailingAddrs bounds the memory. Beyond it, all addresses start again with a full burst.
	maxFailingAddrs = 10_000
)

// FailureThrottle limits the failed authentications of each client address (see [clientaddr.Group]). This
// limits the cost and the log entries of guesses. It does not limit valid credentials, even if they were guessed. It may be used concurrently.
type FailureThrottle struct {
	failures *quota.LocalLimiter[netip.Prefix]
}

// NewFailureThrottle returns a throttle without failures.
func NewFailureThrottle() *FailureThrottle {
	return &FailureThrottle{quota.NewLocalLimiter[netip.Prefix](failuresPerSecond, failureBurst, maxFailingAddrs)}
}

// NewThrottledError returns 429.rate-limiting for an address that has failed too often.
func NewThrottledError() *relay.Error {
	return relay.NewError(relay.CodeRateLimiting,
		"too many requests from this address had invalid credentials; correct them, then try again").
		WithExtra("per", "ip")
}

// IsThrottled reports whether the address has failed too often. It counts nothing.
func (t *FailureThrottle) IsThrottled(addr netip.Addr) bool {
	return t.failures.IsExhausted(clientaddr.Group(addr))
}

// Fail counts a failed authentication. It returns the time until the address may fail again, or 0 if this failure is
// within the limit.
func (t *FailureThrottle) Fail(addr netip.Addr) time.Duration {
	return t.failures.Take(clientaddr.Group(addr))
}
