package forward

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"
	"unicode"

	"golang.org/x/sync/singleflight"
	"golang.org/x/time/rate"

	"github.com/hubrelay/hubrelay/internal/apikey"
	"github.com/hubrelay/hubrelay/internal/httpclient"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/auth"
)

const (
	// maxCredential is the maximum length of a credential in bytes.
	maxCredential = 16 << 10
	maxAnswer     = 64 << 10
	maxName       = 200
	// maxLifetime is the time after which tokens and streams end if the answer has no expiry or a later one.
	maxLifetime = time.Hour
	// maxCredentials and maxHubs bound the memory of the cache. Beyond them, the cache or the decisions about one
	// credential start again. So a client cannot remove the decisions about other credentials.
	maxCredentials = 10_000
	maxHubs        = 100
	// maxRequests is the maximum number of requests at once, which protects the endpoint from guessing.
	maxRequests = 64

	logInterval = time.Minute
)

// errRefused reports that the endpoint rejected a credential.
var errRefused = errors.New("refused")

// Options are the settings of a [Verifier]. All fields are required.
type Options struct {
	URL string
	// Timeout is the time limit of a request.
	Timeout time.Duration
	// CacheTTL is the time for which a decision is used without asking again.
	CacheTTL time.Duration
	// StaleTTL is the time for which a decision is used while the endpoint does not answer.
	StaleTTL time.Duration
	Log      *slog.Logger
}

// Verifier asks the endpoint. It may be used concurrently.
type Verifier struct {
	opts           Options
	client         *http.Client
	now            func() time.Time
	unavailableLog rate.Sometimes
	changes        credentialChanges
	inFlight       singleflight.Group

	mu    sync.Mutex
	cache map[apikey.Hash]map[string]*auth.Key // by the hash of the credential, then by hub
}

var _ auth.ForwardVerifier = (*Verifier)(nil)

// NewVerifier returns a verifier. It sends no request yet.
func NewVerifier(o Options) *Verifier {
	client := &http.Client{
		Timeout:       o.Timeout,
		Transport:     &http.Transport{MaxConnsPerHost: maxRequests, MaxIdleConnsPerHost: maxRequests},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return &Verifier{
		opts: o, client: client, now: time.Now,
		unavailableLog: rate.Sometimes{Interval: logInterval}, cache: make(map[apikey.Hash]map[string]*auth.Key),
	}
}

// MarkChanged makes all decisions about a hub invalid, and all decisions if hub is empty. Their tokens and streams end
// with the next check.
func (v *Verifier) MarkChanged(hub string) { v.changes.add(hub, v.now()) }

// ChangedSince implements [auth.ForwardVerifier].
func (v *Verifier) ChangedSince(t time.Time, hubs []string) bool {
	return v.changes.changedSince(t, hubs)
}

// Verify returns the key of a credential for a hub. The error is 401.auth-invalid, 401.auth-expired, or
// 503.auth-unavailable if there is no valid decision and the endpoint does not answer.
func (v *Verifier) Verify(ctx context.Context, credential, hub string) (*auth.Key, *relay.Error) {
	if len(credential) > maxCredential {
		return nil, relay.NewError(relay.CodeAuthInvalid, "the credential is too long")
	}
	id := apikey.HashOf(credential)
	now := v.now()
	v.mu.Lock()
	cached := v.cache[id][hub]
	v.mu.Unlock()
	if cached != nil && (!now.Before(cached.Expires) || v.changes.changedSince(cached.VerifiedAt, cached.Hubs)) {
		cached = nil
	}
	if cached != nil && now.Sub(cached.VerifiedAt) < v.opts.CacheTTL {
		return cached, nil
	}
	key, err := v.requestDecisionOnce(ctx, id, credential, hub)
	var refused *relay.Error
	switch {
	case err == nil:
		return key, nil
	case errors.Is(err, errRefused):
		return nil, relay.NewError(relay.CodeAuthInvalid, "the credential is not known here")
	case errors.As(err, &refused):
		return nil, refused
	}
	v.unavailableLog.Do(func() { v.opts.Log.Error("credentials cannot be verified", "error", err) })
	if cached != nil && now.Sub(cached.VerifiedAt) < v.opts.CacheTTL+v.opts.StaleTTL {
		return cached, nil
	}
	return nil, relay.NewError(relay.CodeAuthUnavailable, "the endpoint that verifies credentials does not answer; "+
		"try again later")
}

// requestDecisionOnce shares one request among concurrent callers, and remembers its answer. The request does not end
// with ctx.
func (v *Verifier) requestDecisionOnce(ctx context.Context, id apikey.Hash, credential, hub string) (*auth.Key, error) {
	done := v.inFlight.DoChan(string(id[:])+hub, func() (any, error) {
		key, err := v.requestDecision(context.WithoutCancel(ctx), credential, hub)
		if err == nil {
			key.Hash = apikey.HashOf(hub + "\x00" + credential)
		}
		v.remember(id, hub, key, err)
		return key, err
	})
	r, err := relay.Await(ctx, done)
	if err != nil {
		return nil, err
	}
	key, _ := r.Val.(*auth.Key)
	if r.Err == nil && v.changes.changedSince(key.VerifiedAt, key.Hubs) {
		return nil, errors.New("the credentials of the hub changed during the request")
	}
	return key, r.Err
}

// remember stores a decision, and forgets the former one if the credential was refused.
func (v *Verifier) remember(id apikey.Hash, hub string, key *auth.Key, err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	byHub := v.cache[id]
	switch {
	case errors.Is(err, errRefused):
		delete(byHub, hub)
	case err != nil:
	case byHub == nil:
		if len(v.cache) >= maxCredentials {
			clear(v.cache)
		}
		v.cache[id] = map[string]*auth.Key{hub: key}
	default:
		if len(byHub) >= maxHubs {
			clear(byHub)
		}
		byHub[hub] = key
	}
}

// answer is the answer of the endpoint.
type answer struct {
	Name         string    `json:"name"`
	AccountID    string    `json:"account_id"`
	Hubs         []string  `json:"hubs"`
	Capabilities []string  `json:"capabilities"`
	Expires      time.Time `json:"expires"`
}

func (v *Verifier) requestDecision(ctx context.Context, credential, hub string) (*auth.Key, error) {
	started := v.now() // a change during the request must make the answer invalid
	body, err := json.Marshal(map[string]string{"credential": credential, "hub_id": hub})
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, v.opts.URL, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := v.client.Do(req)
	if err != nil {
		return nil, httpclient.WithoutURL(err)
	}
	defer func() { _ = res.Body.Close() }()
	switch res.StatusCode {
	case http.StatusOK:
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound:
		return nil, errRefused
	default:
		return nil, fmt.Errorf("the endpoint answered %s", res.Status)
	}
	text, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	if err != nil {
		return nil, err
	}
	var a answer
	if err := json.Unmarshal(text, &a); err != nil {
		return nil, fmt.Errorf("the answer is not valid: %w", err)
	}
	if a.Name == "" || len(a.Name) > maxName || strings.ContainsFunc(a.Name, unicode.IsControl) {
		return nil, errors.New("the answer has no usable name")
	}
	latest := started.Add(maxLifetime)
	if a.Expires.IsZero() || a.Expires.After(latest) {
		a.Expires = latest
	}
	if !started.Before(a.Expires) {
		return nil, relay.NewError(relay.CodeAuthExpired, "the credential has expired")
	}
	return &auth.Key{
		Name: "forward:" + a.Name, AccountID: a.AccountID, Hubs: a.Hubs, Capabilities: a.Capabilities,
		Expires: a.Expires, External: true, VerifiedAt: started,
	}, nil
}
