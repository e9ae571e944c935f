// Package forward authenticates with credentials that an HTTP endpoint of the operator verifies. A [Verifier] remembers
// the decisions for a while, also while the endpoint does not respond.
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
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/hubrelay/hubrelay/internal/apikey"
	"github.com/hubrelay/hubrelay/internal/httpclient"
	"github.com/hubrelay/hubrelay/internal/logsample"
	"github.com/hubrelay/hubrelay/internal/redact"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/auth"
)

const (
	// maxCredential is the maximum length of a credential in bytes.
	maxCredential = 16 << 10
	maxResponse   = 64 << 10
	maxName       = 200
	// maxLifetime is the time after which tokens and streams end if the response has no expiry or a later one.
	maxLifetime = time.Hour
	// maxAttempts is the number of requests for one credential whose hub changes during each of them.
	maxAttempts = 3

	logInterval = time.Minute
	maxLogged   = 10 // lines per logInterval
)

// errRefused reports that the endpoint rejected a credential.
var errRefused = errors.New("refused")

// Options are the settings of a [Verifier]. All fields are required.
type Options struct {
	URL string
	// Timeout is the time limit of a request, including its wait for others.
	Timeout time.Duration
	// CacheTTL is the time for which a decision is used without asking again.
	CacheTTL time.Duration
	// StaleTTL is the time for which a decision is used while the endpoint does not respond.
	StaleTTL time.Duration
	// IsThrottled reports whether too many credentials from an address were rejected. See [auth.FailureThrottle].
	IsThrottled func(netip.Addr) bool
	Log         *slog.Logger
}

// Verifier asks the endpoint. It may be used concurrently.
type Verifier struct {
	opts           Options
	urlSecrets     redact.Secrets // parts of the URL, which the endpoint may repeat
	client         *http.Client
	now            func() time.Time
	unavailableLog *logsample.Limiter
	changes        credentialChanges
	pending        *pendingRequests
	cache          *decisionCache
}

var _ auth.ForwardVerifier = (*Verifier)(nil)

// NewVerifier returns a verifier. It sends no request yet.
func NewVerifier(o Options) *Verifier {
	client := &http.Client{
		Transport: &http.Transport{
			MaxConnsPerHost: maxRunning, MaxIdleConnsPerHost: maxRunning, MaxResponseHeaderBytes: maxResponse,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return &Verifier{
		opts: o, urlSecrets: httpclient.SecretsOfURL(o.URL), client: client, now: time.Now,
		unavailableLog: logsample.New(maxLogged, logInterval, nil), pending: newPendingRequests(o.Timeout),
		cache: newDecisionCache(o.CacheTTL + o.StaleTTL),
	}
}

// MarkChanged makes all decisions about a hub for credentials of an account invalid, and for all accounts if account is
// empty. Their tokens and streams end with the next check.
func (v *Verifier) MarkChanged(account, hub string) { v.changes.add(account, hub, v.now()) }

// MarkAllChanged makes all decisions invalid.
func (v *Verifier) MarkAllChanged() { v.changes.addAll(v.now()) }

// HasChanged implements [auth.ForwardVerifier].
func (v *Verifier) HasChanged(g *auth.Grant) bool { return v.changes.changedSince(g) }

// Verify returns the key of a credential that a client at addr sent for a hub. The error is 401.auth-invalid,
// 401.auth-expired, 429.rate-limiting for a throttled address, or 503.auth-unavailable if there is no valid decision and
// the endpoint does not respond or too many requests wait for it.
func (v *Verifier) Verify(ctx context.Context, credential, hub string, addr netip.Addr) (*auth.Key, *relay.Error) {
	if len(credential) > maxCredential {
		return nil, relay.NewError(relay.CodeAuthInvalid, "the credential is too long")
	}
	id := apikey.HashOf(credential)
	now := v.now()
	cached := v.cache.findKey(id, hub)
	wasAccepted := cached != nil // so other clients with its address cannot lock it out
	if cached != nil && (!now.Before(cached.Expires) || v.hasChanged(cached, hub)) {
		cached = nil
	}
	if cached != nil && now.Sub(cached.VerifiedAt) < v.opts.CacheTTL {
		return cached, nil
	}
	if !wasAccepted && v.opts.IsThrottled(addr) {
		return nil, auth.NewThrottledError()
	}
	key, err := v.requestCurrentDecision(ctx, id, credential, hub, addr)
	var relayErr *relay.Error
	switch {
	case err == nil:
		return key, nil
	case errors.Is(err, errRefused):
		return nil, relay.NewError(relay.CodeAuthInvalid, "the credential is not known here")
	case errors.As(err, &relayErr):
		return nil, relayErr
	}
	if ctx.Err() == nil { // otherwise the client has left
		if suppressed, ok := v.unavailableLog.Allow(); ok {
			v.opts.Log.Error("credentials cannot be verified", "error", err, "suppressed_lines", suppressed)
		}
	}
	if cached != nil && now.Sub(cached.VerifiedAt) < v.opts.CacheTTL+v.opts.StaleTTL {
		return cached, nil
	}
	return nil, relay.NewError(relay.CodeAuthUnavailable, "the endpoint that verifies credentials gave no valid "+
		"response; try again later")
}

func (v *Verifier) hasChanged(key *auth.Key, hub string) bool {
	g := key.Grant(hub)
	return v.changes.changedSince(&g)
}

// requestCurrentDecision asks again if the credentials of the hub changed during a request.
func (v *Verifier) requestCurrentDecision(
	ctx context.Context, id apikey.Hash, credential, hub string, addr netip.Addr,
) (*auth.Key, error) {
	for range maxAttempts {
		key, err := v.requestDecisionOnce(ctx, id, credential, hub, addr)
		if err != nil || !v.hasChanged(key, hub) {
			return key, err
		}
	}
	return nil, errors.New("the credentials of the hub changed during each request")
}

// requestDecisionOnce shares one request among concurrent callers, and remembers its response.
func (v *Verifier) requestDecisionOnce(
	ctx context.Context, id apikey.Hash, credential, hub string, addr netip.Addr,
) (*auth.Key, error) {
	return v.pending.shareRequest(ctx, string(id[:])+hub, addr, func(ctx context.Context) (*auth.Key, error) {
		key, err := v.requestDecision(ctx, credential, hub)
		if err == nil {
			key.Hash = apikey.HashOf(hub + "\x00" + credential)
			key.Hubs = key.HubsFor(hub) // the other hubs may be thousands
		}
		v.remember(id, hub, key, err)
		return key, err
	})
}

// remember stores a decision, and forgets the former one if the credential was refused.
func (v *Verifier) remember(id apikey.Hash, hub string, key *auth.Key, err error) {
	var relayErr *relay.Error
	switch {
	case errors.Is(err, errRefused), errors.As(err, &relayErr) && relayErr.Code == relay.CodeAuthExpired:
		v.cache.removeKey(id, hub)
	case err == nil:
		v.cache.addKey(id, hub, key)
	}
}

// response is the body of a response of the endpoint.
type response struct {
	Name         string    `json:"name"`
	AccountID    string    `json:"account_id"`
	Hubs         []string  `json:"hubs"`
	Capabilities []string  `json:"capabilities"`
	Expires      time.Time `json:"expires"`
}

func (v *Verifier) requestDecision(ctx context.Context, credential, hub string) (*auth.Key, error) {
	started := v.now() // a change during the request must make the response invalid
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
		return nil, v.urlSecrets.With(credential).Error(httpclient.WithoutURL(err))
	}
	defer func() { _ = res.Body.Close() }()
	switch res.StatusCode {
	case http.StatusOK:
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound:
		return nil, errRefused
	default:
		return nil, fmt.Errorf("the endpoint responded with status %d", res.StatusCode)
	}
	text, err := io.ReadAll(io.LimitReader(res.Body, maxResponse))
	if err != nil {
		return nil, err
	}
	var a response
	if err := json.Unmarshal(text, &a); err != nil {
		// The error may quote the response, which may repeat the credential.
		return nil, fmt.Errorf("the response is not valid: %w", v.urlSecrets.With(credential).Error(err))
	}
	if a.Name == "" || !auth.IsShortText(a.Name, maxName) {
		return nil, errors.New("the response has no usable name")
	}
	if !auth.IsShortText(a.AccountID, auth.MaxAccountID) {
		return nil, errors.New("the account_id of the response is too long or has control characters")
	}
	latest := started.Add(maxLifetime)
	if a.Expires.IsZero() || a.Expires.After(latest) {
		a.Expires = latest
	}
	if !started.Before(a.Expires) {
		return nil, relay.NewError(relay.CodeAuthExpired, "the credential has expired")
	}
	lastUsed := new(atomic.Int64)
	lastUsed.Store(started.Unix())
	return &auth.Key{
		Name: "forward:" + a.Name, AccountID: a.AccountID, Hubs: a.Hubs, Capabilities: a.Capabilities,
		Expires: a.Expires, External: true, VerifiedAt: started, LastUsed: lastUsed,
	}, nil
}
