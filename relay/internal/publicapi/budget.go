package publicapi

import (
	"errors"
	"net/http"
	"strconv"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/audit"
	"github.com/hubrelay/hubrelay/relay/internal/auth"
	"github.com/hubrelay/hubrelay/relay/internal/quota"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
	"github.com/hubrelay/hubrelay/relay/internal/storage"
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
		err := newQuotaError(w, exceeded, "sends more requests than its quota")
		a.recordExceeded(r, key, audit.ActionRequest, exceeded, err)
		return err
	default:
		return a.storeError(r, err)
	}
}

// storeError converts an error of Redis, which may be full or unreachable.
func (a *API) storeError(r *http.Request, err error) *relay.Error {
	if redisconn.IsOutOfMemory(err) {
		return storage.NewFullError("the storage of the relay is full")
	}
	a.logUnavailable(r, err)
	return relay.NewError(relay.CodeNotReady, "the relay cannot reach Redis; try again later")
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

// takeReopening counts a stream that is opened with a token: an event stream, which notifies all nodes, or a websocket with invalid
// parameters, which leaves its token valid. It returns 429.rate-limiting for a token that opens too many.
func (a *API) takeReopening(w http.ResponseWriter, token string) *relay.Error {
	wait := a.reopened.Take(token)
	if wait == 0 {
		return nil
	}
	setRetryAfter(w, wait)
	return relay.NewError(relay.CodeRateLimiting,
		"this token opens streams too often; wait before you reconnect").WithExtra("per", "token")
}
