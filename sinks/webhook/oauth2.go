package webhook

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"golang.org/x/oauth2"
	"golang.org/x/oauth2/clientcredentials"

	"github.com/hubrelay/hubrelay/internal/await"
	"github.com/hubrelay/hubrelay/internal/httpclient"
	"github.com/hubrelay/hubrelay/internal/netguard"
	"github.com/hubrelay/hubrelay/relay"
)

const (
	// refreshMargin is the time before its expiry at which a token is replaced, or a fifth of its lifetime if that is
	// shorter.
	refreshMargin = time.Minute
	// renewRetryInterval is the pause after a failed renewal while the current token is valid.
	renewRetryInterval = 5 * time.Second
	// fetchTime is the time limit of a request for a token. An attempt waits for it at most until its own time limit.
	fetchTime = 30 * time.Second
	// errorRetryInterval is the pause after an error of the endpoint without Retry-After. maxRetryAfter limits
	// Retry-After, because no command ends the pause.
	errorRetryInterval = time.Second
	maxRetryAfter      = time.Hour
	// After a rejected token, the next one is fetched at once, and further ones after minRefetchDelay, doubling up to
	// maxRefetchDelay while all are rejected. Otherwise a receiver that rejects all tokens would cause a token request
	// per attempt.
	minRefetchDelay = 5 * time.Second
	maxRefetchDelay = 10 * time.Minute
	// minTokenLifetime is the minimum time for which a token is used, even if it expires earlier.
	minTokenLifetime = time.Second
	// maxReasonBytes is the maximum part of a token endpoint's response in an error.
	maxReasonBytes = 200
)

// OAuth2 gets a bearer token with client credentials (RFC 6749, section 4.4).
type OAuth2 struct {
	// TokenURL is the token endpoint. allow_cidrs, tls and proxy of the webhook apply to it.
	TokenURL         string            `koanf:"token_url" secret:"url" doc:"Token endpoint, https:// or http://."`
	ClientID         string            `koanf:"client_id" doc:"Client ID."`
	ClientSecret     string            `koanf:"client_secret" secret:"true" doc:"Secret of the client."`
	ClientSecretFile string            `koanf:"client_secret_file" doc:"File with the client_secret."`
	Scopes           []string          `koanf:"scopes" doc:"Requested scopes."`
	Params           map[string]string `koanf:"params" secret:"true" doc:"More parameters of a token request."`
}

func (o *OAuth2) isSet() bool {
	return o.TokenURL+o.ClientID+o.ClientSecret+o.ClientSecretFile != "" || len(o.Scopes)+len(o.Params) > 0
}

// validate reports problems. g may be nil if allow_cidrs is invalid.
func (o *OAuth2) validate(g *netguard.Guard) error {
	if !o.isSet() {
		return nil
	}
	var errs []error
	bad := func(field, problem string) {
		errs = append(errs, &relay.FieldError{Field: "oauth2." + field, Problem: problem})
	}
	if o.TokenURL == "" {
		bad(
			"token_url", "is missing: set the URL of the token endpoint, such as "+
				"https://login.example.com/oauth2/token",
		)
	} else if g != nil {
		if _, err := httpclient.ParseTarget(o.TokenURL, g); err != nil {
			bad("token_url", err.Error())
		}
	}
	if o.ClientID == "" {
		bad("client_id", "is missing: the operator of the token endpoint assigns it")
	}
	if !o.secretSetting().IsSet() {
		bad("client_secret", "is missing: set it here or in client_secret_file")
	}
	errs = append(errs, o.secretSetting().Check())
	for name := range o.Params {
		switch name {
		case "grant_type", "client_id", "client_secret", "scope":
			bad("params", fmt.Sprintf("contains %s, which other settings determine", name))
		}
	}
	return errors.Join(errs...)
}

func (o *OAuth2) secretSetting() httpclient.Setting[string] {
	return httpclient.Setting[string]{
		Key: "oauth2.client_secret", Text: o.ClientSecret, File: o.ClientSecretFile,
		Parse: func(text []byte) (string, error) { return strings.TrimSpace(string(text)), nil },
	}
}

// tokenSource provides the tokens of one sink. It keeps one token, fetches it once for all attempts, and replaces it
// before it expires.
type tokenSource struct {
	config    *OAuth2
	target    *httpclient.Target
	secret    func() string
	transport func() http.RoundTripper
	now       func() time.Time
	log       *slog.Logger
	ctx       context.Context // ends when the sink is closed
	stop      context.CancelFunc
	busy      sync.WaitGroup

	mu           sync.Mutex
	oauth        *clientcredentials.Config // caches how the endpoint expects credentials
	clientSecret string                    // of oauth
	token        string                    // empty without a token
	issued       string                    // the last token, which an error of the endpoint may repeat
	renewAt      time.Time                 // time to replace it
	expiresAt    time.Time                 // zero if it does not expire
	inFlight     *tokenFetch
	lastErr      error         // of the last request for a token
	retryAt      time.Time     // the earliest next request after an error
	isRejected   bool          // the receiver rejected the token for an event, so it is to be replaced
	refetchAt    time.Time     // the earliest time to replace a rejected token
	refetchDelay time.Duration // between the last two replacements, or 0 after a token was accepted
}

// tokenFetch is one request for a token.
type tokenFetch struct {
	done chan struct{}
	text string
	err  error
}

// tokenError is the reason why a token cannot be sent. It does not contain the token.
type tokenError struct{ error }

func newTokenSource(
	c *OAuth2, g *netguard.Guard, log *slog.Logger, round func() http.RoundTripper,
) (*tokenSource, error) {
	target, err := httpclient.ParseTarget(c.TokenURL, g)
	if err != nil {
		return nil, fmt.Errorf("oauth2.token_url %w", err)
	}
	secret, err := c.secretSetting().Open(log, time.Now)
	if err != nil {
		return nil, err
	}
	t := &tokenSource{config: c, target: target, secret: secret, transport: round, now: time.Now, log: log}
	t.ctx, t.stop = context.WithCancel(context.Background())
	return t, nil
}

// get returns a token. A token that expires soon is replaced in the background while attempts use it.
func (t *tokenSource) get(ctx context.Context) (string, error) {
	t.mu.Lock()
	now := t.now()
	if t.token != "" && (t.expiresAt.IsZero() || now.Before(t.expiresAt)) {
		if !t.renewAt.IsZero() && !now.Before(t.renewAt) || t.isRejected && !now.Before(t.retryAt) {
			t.fetchLocked()
		}
		defer t.mu.Unlock()
		return t.token, nil
	}
	if wait := t.retryAt.Sub(now); wait > 0 {
		defer t.mu.Unlock()
		return "", relay.RetryAfter(t.lastErr, wait)
	}
	f := t.fetchLocked()
	t.mu.Unlock()
	return t.awaitFetch(ctx, f)
}

// awaitFetch returns the result of a request for a token.
func (t *tokenSource) awaitFetch(ctx context.Context, f *tokenFetch) (string, error) {
	if _, late := await.Value(ctx, f.done); late != nil {
		err := t.target.RedactError(ctx, late, t.target.Secrets())
		return "", fmt.Errorf("get a token from %s: %w", t.target.Host(), errors.Unwrap(err))
	}
	return f.text, f.err
}

// rejectToken records that the receiver rejected a token. It returns a function that waits for another one, or nil if there
// will be none soon. Other attempts use the rejected one until then, because the receiver may have rejected only one event.
func (t *tokenSource) rejectToken(text string) (getOther func(context.Context) (string, error)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.now()
	switch {
	case t.token != text:
		return t.get
	case t.inFlight == nil && (now.Before(t.refetchAt) || now.Before(t.retryAt)):
		return nil
	}
	if t.refetchDelay > 0 && !t.isRejected {
		t.log.Warn("destination rejects new tokens with 401, check scope, audience and resource",
			"token_endpoint", t.target.Host())
	}
	t.isRejected = true
	f := t.fetchLocked()
	return func(ctx context.Context) (string, error) { return t.awaitFetch(ctx, f) }
}

// acceptToken records that the receiver accepted a token.
func (t *tokenSource) acceptToken(text string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.token == text {
		t.refetchDelay = 0
	}
}

// close cancels a request in progress. It may be called twice.
func (t *tokenSource) close() {
	t.mu.Lock() // Wait must not run before a fetch that starts now
	t.stop()
	t.mu.Unlock()
	t.busy.Wait()
}

func (t *tokenSource) fetchLocked() *tokenFetch {
	if t.inFlight != nil {
		return t.inFlight
	}
	f := &tokenFetch{done: make(chan struct{})}
	if t.ctx.Err() != nil {
		f.err = fmt.Errorf("get a token from %s: %w", t.target.Host(), t.ctx.Err())
		close(f.done)
		return f
	}
	t.inFlight = f
	config := t.oauthLocked()
	t.busy.Go(func() {
		ctx, cancel := context.WithTimeout(t.ctx, fetchTime)
		defer cancel()
		token, err := config.Token(context.WithValue(ctx, oauth2.HTTPClient, t.httpClient()))
		if err == nil {
			if _, invalid := parseBearer([]byte(token.AccessToken)); invalid != nil {
				err = &tokenError{invalid}
			}
		}
		t.mu.Lock()
		defer t.mu.Unlock()
		if t.inFlight = nil; err != nil {
			f.err = t.failLocked(t.describeErrorLocked(ctx, err), retryAfterOf(err, t.now()))
		} else {
			t.keepLocked(token)
			f.text = t.token
		}
		close(f.done)
	})
	return f
}

func (t *tokenSource) keepLocked(token *oauth2.Token) {
	if t.isRejected {
		t.isRejected, t.refetchDelay = false, min(max(2*t.refetchDelay, minRefetchDelay), maxRefetchDelay)
		t.refetchAt = t.now().Add(t.refetchDelay)
	}
	t.token, t.issued, t.expiresAt, t.renewAt = token.AccessToken, token.AccessToken, time.Time{}, time.Time{}
	if !token.Expiry.IsZero() {
		life := max(time.Until(token.Expiry), minTokenLifetime)
		t.expiresAt = t.now().Add(life)
		t.renewAt = t.expiresAt.Add(-min(refreshMargin, life/5))
	}
}

// failLocked records a failure of the endpoint, with its Retry-After or 0.
func (t *tokenSource) failLocked(err error, wait time.Duration) error {
	now := t.now()
	t.lastErr, t.retryAt = err, now.Add(max(wait, errorRetryInterval))
	t.renewAt = now.Add(max(wait, renewRetryInterval))
	if wait > 0 {
		return relay.RetryAfter(err, wait)
	}
	return err
}

// retryAfterOf returns the Retry-After of the endpoint.
func retryAfterOf(err error, now time.Time) time.Duration {
	var refused *oauth2.RetrieveError
	if !errors.As(err, &refused) || refused.Response == nil {
		return 0
	}
	wait, _ := httpclient.RetryAfter(refused.Response.Header, now)
	return min(wait, maxRetryAfter)
}

// oauthLocked creates a new configuration only if the secret has changed.
func (t *tokenSource) oauthLocked() *clientcredentials.Config {
	secret := t.secret()
	if t.oauth != nil && t.clientSecret == secret {
		return t.oauth
	}
	params := make(url.Values, len(t.config.Params))
	for name, value := range t.config.Params {
		params.Set(name, value)
	}
	t.clientSecret = secret
	t.oauth = &clientcredentials.Config{
		ClientID: t.config.ClientID, ClientSecret: secret, TokenURL: t.target.URL().String(), Scopes: t.config.Scopes,
		EndpointParams: params,
	}
	return t.oauth
}

func (t *tokenSource) httpClient() *http.Client {
	return &http.Client{
		Transport:     &singleRequestTransport{RoundTripper: httpclient.UpgradeRejecter{RoundTripper: t.transport()}},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// singleRequestTransport sends only one request to an endpoint that is busy or down. The library would repeat a failed
// request immediately with the credentials in another place, until it knows which place the endpoint accepts.
type singleRequestTransport struct {
	http.RoundTripper
	response *http.Response // to the first request
}

// RoundTrip returns the response to the first request again, without its body.
func (s *singleRequestTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	if s.response != nil {
		return &http.Response{
			StatusCode: s.response.StatusCode, Header: s.response.Header, Body: http.NoBody, Request: req,
		}, nil
	}
	resp, err := s.RoundTripper.RoundTrip(req)
	if err == nil && (isBusy(resp.StatusCode) || resp.StatusCode >= http.StatusInternalServerError) {
		s.response = resp
	}
	return resp, err
}

// describeErrorLocked describes the response of the endpoint, without the secrets that it repeats.
func (t *tokenSource) describeErrorLocked(ctx context.Context, err error) error {
	what := fmt.Errorf("get a token from %s", t.target.Host())
	if invalid := (*tokenError)(nil); errors.As(err, &invalid) {
		return fmt.Errorf("%w: the access_token of its response %w", what, invalid.error)
	}
	secrets := t.target.Secrets().With(t.secretTexts()...).With(clientSecretTexts(t.clientSecret)...).With(t.issued)
	var refused *oauth2.RetrieveError
	if !errors.As(err, &refused) {
		var network *url.Error
		if !errors.As(err, &network) && ctx.Err() == nil {
			// The response is not a token, and the error may contain text of the endpoint.
			return fmt.Errorf("%w: its response contains no token for a request", what)
		}
		err = t.target.RedactError(ctx, err, secrets)
		return fmt.Errorf("%w: %w", what, errors.Unwrap(err))
	}
	said := &relay.ResponseError{}
	if refused.Response != nil {
		said.Status = refused.Response.StatusCode
	}
	if said.Body = refused.ErrorCode; said.Body != "" && refused.ErrorDescription != "" {
		said.Body += " (" + refused.ErrorDescription + ")"
	}
	said.Body = relay.Truncate(secrets.Prefix(said.Body, maxReasonBytes+len("…")), maxReasonBytes)
	if err = fmt.Errorf("%w: it responded with %w", what, said); said.Body != "" {
		err = fmt.Errorf("%w: %s", err, said.Body)
	}
	if !isBusy(said.Status) {
		return errors.New(err.Error()) // without the type, because it is not a response of the receiver
	}
	return err // the complete sink pauses, because it cannot send without a token
}

func isBusy(status int) bool {
	return status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable
}

// secretTexts returns the values other than the token that errors must not contain.
func (t *tokenSource) secretTexts() []string {
	list := clientSecretTexts(t.secret())
	for _, value := range t.config.Params {
		list = append(list, value)
	}
	return list
}

// clientSecretTexts returns a client secret as it is sent. RFC 6749 section 2.3.1: it is escaped before its base64 form.
func clientSecretTexts(secret string) []string { return []string{secret, url.QueryEscape(secret)} }
