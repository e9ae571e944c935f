package publicapi

import (
	"errors"
	"net/http"
	"strconv"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/audit"
	"github.com/hubrelay/hubrelay/relay/internal/auth"
	"github.com/hubrelay/hubrelay/relay/internal/quota"
)

// takeRequest takes one request from the quotas of a key and its account.
func (a *API) takeRequest(w http.ResponseWriter, r *http.Request, key *auth.Key) *relay.Error {
	if a.opt.Quotas == nil {
		return nil
	}
	client := quota.Client{Key: key.Name}
	if key.AccountID != auth.Wildcard {
		client.Account = key.AccountID
	}
	err := a.opt.Quotas.Take(r.Context(), client, quota.Amount{Count: 1})
	var exceeded *quota.ExceededError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &exceeded):
		refused := newQuotaError(w, exceeded, "sends more requests than its quota")
		a.recordExceeded(r, key.Name, audit.ActionRequest, exceeded, refused)
		return refused
	default:
		a.logUnavailable(r, err)
		return relay.NewError(relay.CodeNotReady, "the relay cannot reach its store right now; try again in a moment")
	}
}

// newQuotaError returns 429.rate-limiting and sets Retry-After. what is the end of "this key …".
func newQuotaError(w http.ResponseWriter, e *quota.ExceededError, what string) *relay.Error {
	seconds := setRetryAfter(w, e.RetryIn)
	return relay.NewError(relay.CodeRateLimiting, "this "+string(e.Kind)+" "+what+"; nothing was stored, try again in "+
		strconv.FormatInt(seconds, 10)+" s").WithExtra("per", string(e.Kind))
}

const (
	// reopensPerSecond and reopenBurst limit how often event streams are opened with one token. A client that waits
	// before it reconnects, as every browser does, never reaches them.
	reopensPerSecond = 1
	reopenBurst      = 20
	// maxReopened bounds the memory. Beyond it, all tokens start again with a full burst.
	maxReopened = 10_000
)

// reopenThrottle limits how often one token opens event streams, because each time all nodes are notified. The zero
// value is ready, and may be used concurrently.
type reopenThrottle struct {
	mu     sync.Mutex
	tokens map[string]*rate.Limiter
}

// take returns the time until the token may open another stream, or 0 if it may now.
func (t *reopenThrottle) take(token string) time.Duration {
	t.mu.Lock()
	l := t.tokens[token]
	if l == nil {
		if t.tokens == nil || len(t.tokens) >= maxReopened {
			t.tokens = make(map[string]*rate.Limiter)
		}
		l = rate.NewLimiter(reopensPerSecond, reopenBurst)
		t.tokens[token] = l
	}
	t.mu.Unlock()
	r := l.Reserve()
	wait := r.Delay()
	if wait > 0 {
		r.Cancel()
	}
	return wait
}
