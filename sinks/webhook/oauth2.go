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

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/egress"
	"github.com/hubrelay/hubrelay/relay/guard"
)

const (
	// refreshBefore is how long before its end a token is replaced, or a fifth of its life where that is shorter.
	refreshBefore = time.Minute
	// renewAgain is how long a token that is still good is used before another is asked for again, after that has failed.
	renewAgain = 5 * time.Second
	// fetchTime bounds a request for a token, which no attempt waits for longer than it may take itself.
	fetchTime = 30 * time.Second
	// askAgain is how long the endpoint is left alone after it has failed, where it names no time itself, and longestPause
	// bounds what it names: no delivery waits longer either.
	askAgain     = time.Second
	longestPause = 24 * time.Hour
	// A receiver that refuses a token gets another at once, and then after firstRefetch at the soonest, which doubles up to
	// longestRefetch as long as none of them is taken: who refuses all would cost the endpoint a token for each attempt.
	firstRefetch   = 5 * time.Second
	longestRefetch = 10 * time.Minute
	// shortestLife is how long each token is used, whatever its end.
	shortestLife = time.Second
	// keptReason bounds what is shown of a token endpoint's answer.
	keptReason = 200
)

// OAuth2 gets a bearer token by client credentials (RFC 6749, 4.4).
type OAuth2 struct {
	// TokenURL is where tokens come from. It is dialled as the webhook itself is: allow_cidrs, tls and proxy hold for it.
	TokenURL         string            `koanf:"token_url" secret:"url" doc:"Where tokens are fetched: https:// or http://; allow_cidrs, tls and proxy hold for it too."`
	ClientID         string            `koanf:"client_id" doc:"Who we are to the token endpoint."`
	ClientSecret     string            `koanf:"client_secret" secret:"true" doc:"What proves it. Exactly one of client_secret and client_secret_file is given."`
	ClientSecretFile string            `koanf:"client_secret_file" doc:"A file that holds the client secret, read again when it changes."`
	Scopes           []string          `koanf:"scopes" doc:"The scopes that are asked for."`
	Params           map[string]string `koanf:"params" secret:"true" doc:"Further parameters of the request for a token, such as audience or resource."`
	AuthStyle        string            `koanf:"auth_style" enum:"auto,header,body" doc:"How id and secret are sent: auto tries the header Authorization, then the body, and remembers."`
}

func (o *OAuth2) given() bool {
	return o.TokenURL+o.ClientID+o.ClientSecret+o.ClientSecretFile != "" || len(o.Scopes)+len(o.Params) > 0
}

func (o *OAuth2) style() (oauth2.AuthStyle, bool) {
	switch o.AuthStyle {
	case "", "auto":
		return oauth2.AuthStyleAutoDetect, true
	case "header":
		return oauth2.AuthStyleInHeader, true
	case "body":
		return oauth2.AuthStyleInParams, true
	}
	return 0, false
}

// validate reports what is wrong; g may be nil where allow_cidrs is.
func (o *OAuth2) validate(g *guard.Guard) error {
	if !o.given() {
		return nil
	}
	var errs []error
	bad := func(field, problem string) {
		errs = append(errs, &relay.FieldError{Field: "oauth2." + field, Problem: problem})
	}
	if o.TokenURL == "" {
		bad("token_url", "is missing: give the address of the token endpoint, like https://login.example.com/oauth2/token")
	} else if g != nil {
		if _, err := egress.ParseTarget(o.TokenURL, g); err != nil {
			bad("token_url", err.Error())
		}
	}
	if o.ClientID == "" {
		bad("client_id", "is missing: the token endpoint's operator has given you one")
	}
	if !o.secret().Given() {
		bad("client_secret", "is missing: give it, or a file that holds it as client_secret_file")
	}
	errs = append(errs, o.secret().Check())
	for name := range o.Params {
		switch name {
		case "grant_type", "client_id", "client_secret", "scope":
			bad("params", fmt.Sprintf("holds %s, which follows from the other settings", name))
		}
	}
	if _, ok := o.style(); !ok {
		bad("auth_style", "is not known: choose auto, header or body")
	}
	return errors.Join(errs...)
}

func (o *OAuth2) secret() egress.Setting[string] {
	return egress.Setting[string]{
		Key: "oauth2.client_secret", Text: o.ClientSecret, File: o.ClientSecretFile,
		Parse: func(text []byte) (string, error) { return strings.TrimSpace(string(text)), nil },
	}
}

// tokens are those of one sink: one is kept, fetched once however many attempts want it, and replaced before its end.
type tokens struct {
	config *OAuth2
	target *egress.Target
	secret func() string
	round  func() http.RoundTripper
	now    func() time.Time
	log    *slog.Logger
	ctx    context.Context // ends with the sink
	stop   context.CancelFunc
	busy   sync.WaitGroup

	mu      sync.Mutex
	oauth   *clientcredentials.Config // remembers how the endpoint wants to be told who we are
	made    string                    // the client secret that it was made with
	text    string                    // empty where there is none
	renew   time.Time                 // when it is to be replaced
	ends    time.Time                 // zero where it has no end
	running *fetch
	failed  error         // why the last request for a token failed
	closed  time.Time     // when the endpoint may be asked again after that
	again   time.Time     // when a refused token may be replaced
	delay   time.Duration // between the last two of those, 0 once a token was taken
}

// fetch is one request for a token.
type fetch struct {
	done chan struct{}
	text string
	err  error
}

func newTokens(c *OAuth2, g *guard.Guard, log *slog.Logger, round func() http.RoundTripper) (*tokens, error) {
	target, err := egress.ParseTarget(c.TokenURL, g)
	if err != nil {
		return nil, fmt.Errorf("oauth2.token_url %w", err)
	}
	secret, err := c.secret().Open(log, time.Now)
	if err != nil {
		return nil, err
	}
	t := &tokens{config: c, target: target, secret: secret, round: round, now: time.Now, log: log}
	t.ctx, t.stop = context.WithCancel(context.Background())
	return t, nil
}

// get returns a token. One that is about to end is replaced while attempts go on with it.
func (t *tokens) get(ctx context.Context) (string, error) {
	t.mu.Lock()
	now := t.now()
	if t.text != "" && (t.ends.IsZero() || now.Before(t.ends)) {
		if !t.renew.IsZero() && !now.Before(t.renew) {
			t.fetchLocked()
		}
		defer t.mu.Unlock()
		return t.text, nil
	}
	if wait := t.closed.Sub(now); wait > 0 {
		defer t.mu.Unlock()
		return "", relay.RetryAfter(t.failed, wait)
	}
	f := t.fetchLocked()
	t.mu.Unlock()
	if _, there := relay.Await(ctx, f.done); there {
		return f.text, f.err
	}
	return "", fmt.Errorf("get a token from %s: it has not answered: %w", t.target.Host(), context.Cause(ctx))
}

// refuse is told of a token that the receiver does not take, and tells whether there is, or will be, another.
func (t *tokens) refuse(text string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.now()
	switch {
	case t.text != text:
		return true
	case now.Before(t.again), now.Before(t.closed):
		return false
	}
	if t.delay > 0 {
		t.log.Warn("the receiver answers 401 to a fresh token, too; see what scope, audience or resource it wants", "token_endpoint", t.target.Host())
	}
	t.text, t.delay = "", min(max(2*t.delay, firstRefetch), longestRefetch)
	t.again = now.Add(t.delay)
	return true
}

// took is told of a token that the receiver has taken.
func (t *tokens) took(text string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.text == text {
		t.delay = 0
	}
}

// close ends a request that is under way. It may be called twice.
func (t *tokens) close() {
	t.mu.Lock() // a fetch that begins has seen the end, or is waited for
	t.stop()
	t.mu.Unlock()
	t.busy.Wait()
}

func (t *tokens) fetchLocked() *fetch {
	if t.running != nil {
		return t.running
	}
	f := &fetch{done: make(chan struct{})}
	if t.ctx.Err() != nil {
		f.err = fmt.Errorf("get a token from %s: %w", t.target.Host(), t.ctx.Err())
		close(f.done)
		return f
	}
	t.running = f
	config := t.oauthLocked()
	t.busy.Go(func() {
		ctx, cancel := context.WithTimeout(t.ctx, fetchTime)
		defer cancel()
		token, err := config.Token(context.WithValue(ctx, oauth2.HTTPClient, t.client()))
		if err == nil {
			_, err = parseBearer([]byte(token.AccessToken))
		}
		t.mu.Lock()
		defer t.mu.Unlock()
		if t.running = nil; err != nil {
			f.err = t.failLocked(t.explain(ctx, err), named(err, t.now()))
		} else {
			t.keepLocked(token)
			f.text = t.text
		}
		close(f.done)
	})
	return f
}

func (t *tokens) keepLocked(token *oauth2.Token) {
	t.text, t.ends, t.renew = token.AccessToken, time.Time{}, time.Time{}
	if !token.Expiry.IsZero() {
		life := max(time.Until(token.Expiry), shortestLife)
		t.ends = t.now().Add(life)
		t.renew = t.ends.Add(-min(refreshBefore, life/5))
	}
}

// failLocked remembers that the endpoint has failed, and for how long it wants to be left alone, 0 where it said nothing.
func (t *tokens) failLocked(err error, wait time.Duration) error {
	now := t.now()
	t.failed, t.closed = err, now.Add(max(wait, askAgain))
	t.renew = now.Add(max(wait, renewAgain))
	if wait > 0 {
		return relay.RetryAfter(err, wait)
	}
	return err
}

// named is how long the endpoint wants to be left alone.
func named(err error, now time.Time) time.Duration {
	var refused *oauth2.RetrieveError
	if !errors.As(err, &refused) || refused.Response == nil {
		return 0
	}
	wait, _ := egress.RetryAfter(refused.Response.Header, now)
	return min(wait, longestPause)
}

// oauthLocked is made anew for another secret alone.
func (t *tokens) oauthLocked() *clientcredentials.Config {
	secret := t.secret()
	if t.oauth != nil && t.made == secret {
		return t.oauth
	}
	style, _ := t.config.style()
	params := make(url.Values, len(t.config.Params))
	for name, value := range t.config.Params {
		params.Set(name, value)
	}
	t.made = secret
	t.oauth = &clientcredentials.Config{
		ClientID: t.config.ClientID, ClientSecret: secret, TokenURL: t.target.URL().String(), Scopes: t.config.Scopes,
		EndpointParams: params, AuthStyle: style,
	}
	return t.oauth
}

func (t *tokens) client() *http.Client {
	return &http.Client{
		Transport:     &patient{RoundTripper: t.round()},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// patient asks nothing more of an endpoint that has no time, which the library would do at once, with the secret elsewhere. It is of
// one fetch.
type patient struct {
	http.RoundTripper
	busy *http.Response // its answer
}

// RoundTrip gives the answer once more, without what it said.
func (p *patient) RoundTrip(req *http.Request) (*http.Response, error) {
	if p.busy != nil {
		return &http.Response{StatusCode: p.busy.StatusCode, Header: p.busy.Header, Body: http.NoBody, Request: req}, nil
	}
	resp, err := p.RoundTripper.RoundTrip(req)
	if err == nil && isBusy(resp.StatusCode) {
		p.busy = resp
	}
	return resp, err
}

// explain names the endpoint and what it answered. What it says of itself may repeat a secret, which is taken out.
func (t *tokens) explain(ctx context.Context, err error) error {
	what := fmt.Errorf("get a token from %s", t.target.Host())
	var refused *oauth2.RetrieveError
	if !errors.As(err, &refused) {
		var network *url.Error
		if !errors.As(err, &network) && ctx.Err() == nil {
			// It is of an answer that is no token: its words may be the endpoint's.
			return fmt.Errorf("%w: its answer holds no token that a request can bear", what)
		}
		err = t.target.Error(ctx, err)
		return fmt.Errorf("%w: %w", what, errors.Unwrap(err))
	}
	said := &relay.AnswerError{}
	if refused.Response != nil {
		said.Status = refused.Response.StatusCode
	}
	if said.Body = refused.ErrorCode; said.Body != "" && refused.ErrorDescription != "" {
		said.Body += " (" + refused.ErrorDescription + ")"
	}
	for _, secret := range append(t.secrets(), t.made) {
		if len(secret) >= shortestHidden {
			said.Body = strings.ReplaceAll(said.Body, secret, "(redacted)")
			said.Body = strings.ReplaceAll(said.Body, url.QueryEscape(secret), "(redacted)")
		}
	}
	said.Body = relay.Clip(strings.ToValidUTF8(t.target.Scrub(said.Body), ""), keptReason)
	if err = fmt.Errorf("%w: it %w", what, said); said.Body != "" {
		err = fmt.Errorf("%w: %s", err, said.Body)
	}
	if !isBusy(said.Status) {
		return errors.New(err.Error()) // no answer of the receiver's
	}
	return err // without tokens nothing goes to the receiver, so the whole sink is to rest
}

func isBusy(status int) bool {
	return status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable
}

// secrets are what no error may show, the token aside.
func (t *tokens) secrets() []string {
	list := []string{t.secret()}
	for _, value := range t.config.Params {
		list = append(list, value)
	}
	return list
}
