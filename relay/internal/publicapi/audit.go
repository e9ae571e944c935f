package publicapi

import (
	"net/http"
	"sync"
	"time"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/audit"
	"github.com/hubrelay/hubrelay/relay/internal/auth"
	"github.com/hubrelay/hubrelay/relay/internal/quota"
)

// exceededInterval is the time between two records of exceeded quotas of one key. Otherwise a key could push all other
// entries out of the audit log.
const exceededInterval = 10 * time.Second

// maxExceeded bounds the memory. Beyond it, all keys start again.
const maxExceeded = 10_000

// newEntry returns an entry for an action of a key.
func newEntry(key *auth.Key, action audit.Action, target string) audit.Entry {
	return audit.Entry{
		Actor: keyActor(key.Name), AccountID: key.AccountID, Owner: key.Owner(), Action: action, Target: target,
	}
}

func keyActor(name string) string { return "key " + name }

// recordAction completes an entry with the address of the client and the result, and records it. A nil err means success.
func (a *API) recordAction(r *http.Request, e audit.Entry, err *relay.Error) {
	e.Result = audit.ResultOK
	if client := a.opt.TrustedProxies.Client(r); client.IsValid() {
		e.Address = client.String()
	}
	if err != nil {
		e.Result, e.Detail = string(err.Code), err.Detail
	}
	a.opt.Audit.Record(e)
}

// countAuthFailure records a failed authentication. It returns err, or 429.rate-limiting if the client has failed
// too often. Those are not recorded.
func (a *API) countAuthFailure(w http.ResponseWriter, r *http.Request, err *relay.Error) *relay.Error {
	if wait := a.opt.Failures.Fail(a.opt.TrustedProxies.Client(r)); wait > 0 {
		setRetryAfter(w, wait)
		return auth.NewThrottledError()
	}
	a.recordAction(r, audit.Entry{Action: audit.ActionAuthenticate, Target: r.Method + " " + r.URL.Path}, err)
	return err
}

// recordRefusedPublish records a request to publish that a repetition would not change. [API.recordExceeded] records
// exceeded quotas.
func (a *API) recordRefusedPublish(r *http.Request, key *auth.Key, err *relay.Error) {
	if status := err.Status(); status < 500 && status != http.StatusTooManyRequests {
		a.recordAction(r, newEntry(key, audit.ActionPublish, ""), err)
	}
}

// recordExceeded records that a key has exceeded a quota, at most once per exceededInterval.
func (a *API) recordExceeded(
	r *http.Request, key *auth.Key, action audit.Action, e *quota.ExceededError, err *relay.Error,
) {
	if a.exceeded.shouldRecord(key.AccountID, key.Name) {
		a.recordAction(r, newEntry(key, action, string(e.Kind)), err)
	}
}

// exceededQuotas remembers when the exceeded quota of a key was recorded. It may be used concurrently.
type exceededQuotas struct {
	mu   sync.Mutex
	last map[exceededKey]time.Time
}

// exceededKey is a key. External keys of different accounts may have the same name.
type exceededKey struct{ account, name string }

func (q *exceededQuotas) shouldRecord(account, name string) bool {
	key := exceededKey{account, name}
	q.mu.Lock()
	defer q.mu.Unlock()
	if time.Since(q.last[key]) < exceededInterval {
		return false
	}
	if q.last == nil || len(q.last) >= maxExceeded {
		q.last = make(map[exceededKey]time.Time)
	}
	q.last[key] = time.Now()
	return true
}
