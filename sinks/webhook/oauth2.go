package webhook

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strconv"
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
	t := &tokens{config: c, target: target, secret: secret, round: round, now: time.Now}
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
	f := t.fetchLocked()
	t.mu.Unlock()
	select {
	case <-f.done:
		return f.text, f.err
	case <-ctx.Done():
		return "", fmt.Errorf("get a token from %s: it has not answered: %w", t.target.Host(), context.Cause(ctx))
	}
}

// refuse forgets a token that the receiver does not take.
func (t *tokens) refuse(text string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.text == text {
		t.text = ""
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
			f.err = t.explain(ctx, err)
			t.renew = t.now().Add(renewAgain)
		} else {
			t.keepLocked(token)
			f.text = t.text
		}
		close(f.done)
	})
	return f
}

func (t *tokens) keepLocked(token *oauth2.Token) {
	t.text, t.ends, t.renew = token.AccessToken, token.Expiry, time.Time{}
	if !t.ends.IsZero() {
		t.renew = t.ends.Add(-min(refreshBefore, t.ends.Sub(t.now())/5))
	}
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
		Transport:     t.round(),
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
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
	text := "answered"
	if refused.Response != nil {
		text += " " + strconv.Itoa(refused.Response.StatusCode)
	}
	if refused.ErrorCode != "" {
		text += ": " + refused.ErrorCode
		if refused.ErrorDescription != "" {
			text += " (" + refused.ErrorDescription + ")"
		}
	}
	for _, secret := range append(t.secrets(), t.made) {
		if len(secret) >= shortestHidden {
			text = strings.ReplaceAll(text, secret, "(redacted)")
			text = strings.ReplaceAll(text, url.QueryEscape(secret), "(redacted)")
		}
	}
	return fmt.Errorf("%w: it %s", what, relay.Clip(strings.ToValidUTF8(t.target.Scrub(text), ""), keptReason))
}

// secrets are what no error may show, the token aside.
func (t *tokens) secrets() []string {
	list := []string{t.secret()}
	for _, value := range t.config.Params {
		list = append(list, value)
	}
	return list
}
