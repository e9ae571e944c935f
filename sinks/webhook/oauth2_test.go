package webhook

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/sinks/sinktest"
)

// tokenEndpoint is a double of an OAuth2 server's token endpoint, made from RFC 6749: it knows one client.
type tokenEndpoint struct {
	*httptest.Server
	answer  http.HandlerFunc // nil for a token
	expires int              // seconds, 0 for no end
	given   atomic.Int64
	mu      sync.Mutex
	form    map[string][]string
}

func newEndpoint(t *testing.T, answer http.HandlerFunc) *tokenEndpoint {
	t.Helper()
	e := &tokenEndpoint{answer: answer, expires: 3600}
	e.Server = httptest.NewServer(e)
	t.Cleanup(e.Close)
	return e
}

func (e *tokenEndpoint) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	_ = r.ParseForm()
	e.mu.Lock()
	e.form = r.PostForm
	e.mu.Unlock()
	if e.answer != nil {
		e.answer(w, r)
		return
	}
	id, secret, ok := r.BasicAuth()
	if !ok {
		id, secret = r.PostForm.Get("client_id"), r.PostForm.Get("client_secret")
	}
	w.Header().Set("Content-Type", "application/json")
	if id != "client" || secret != "s3cretclient" || r.PostForm.Get("grant_type") != "client_credentials" {
		w.WriteHeader(http.StatusUnauthorized)
		_, _ = fmt.Fprintf(w, `{"error":"invalid_client","error_description":"%s is not the secret"}`, secret)
		return
	}
	answer := map[string]any{"access_token": fmt.Sprint("token-", e.given.Add(1)), "token_type": "Bearer"}
	if e.expires != 0 {
		answer["expires_in"] = e.expires
	}
	_ = json.NewEncoder(w).Encode(answer)
}

func (e *tokenEndpoint) config() OAuth2 {
	return OAuth2{TokenURL: e.URL + "/token", ClientID: "client", ClientSecret: "s3cretclient"}
}

// api takes a request only with a token that is not refused.
type api struct {
	mu      sync.Mutex
	refused map[string]bool
	seen    []string
}

func (a *api) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	token := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
	a.seen = append(a.seen, token)
	if a.refused[token] || a.refused["*"] {
		w.WriteHeader(http.StatusUnauthorized)
		_, _ = fmt.Fprintf(w, "what is %s after %s?", token, strings.Join(a.seen, " "))
	}
}

func (a *api) took() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	seen := strings.Join(a.seen, " ")
	a.seen = nil
	return seen
}

func oauthSink(t *testing.T, e *tokenEndpoint, change func(*OAuth2)) (*Sink, *api) {
	t.Helper()
	a := &api{refused: map[string]bool{}}
	srv := httptest.NewServer(a)
	t.Cleanup(srv.Close)
	c := &Config{URL: srv.URL, OAuth2: e.config()}
	if change != nil {
		change(&c.OAuth2)
	}
	return openTest(t, c), a
}

var sampled = sinktest.Sample("0123456789abcdef01234567")

// Attempts that want a token at once share one request for it; a 401 gets another, once.
func TestTokens(t *testing.T) {
	t.Parallel()
	e := newEndpoint(t, nil)
	s, a := oauthSink(t, e, func(o *OAuth2) {
		o.Scopes, o.Params = []string{"read", "write"}, map[string]string{"audience": "https://api.example.com"}
	})
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			if err := s.Deliver(t.Context(), sampled); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if got := a.took(); got != strings.TrimSpace(strings.Repeat("token-1 ", 20)) || e.given.Load() != 1 {
		t.Errorf("%d tokens were given, seen %s", e.given.Load(), got)
	}
	if e.form["scope"][0] != "read write" || e.form["audience"][0] != "https://api.example.com" {
		t.Errorf("asked for %v", e.form)
	}
	a.refused["token-1"] = true
	if err := s.Deliver(t.Context(), sampled); err != nil || a.took() != "token-1 token-2" {
		t.Error(err)
	}
	a.refused["*"] = true
	err := s.Deliver(t.Context(), sampled)
	var said *relay.ResponseError
	if !errors.As(err, &said) || !strings.Contains(said.Body, "(redacted)") || strings.Contains(said.Body, "token-") {
		t.Errorf("a response with the last tokens: got %v, %+v", err, said)
	}
}

// A token is replaced before its expiry, while attempts use it. An expired one is not used.
func TestTokensEnd(t *testing.T) {
	t.Parallel()
	e := newEndpoint(t, nil)
	e.expires = 100
	s, a := oauthSink(t, e, nil)
	start := time.Now()
	var ahead atomic.Int64
	s.tokens.now = func() time.Time { return start.Add(time.Duration(ahead.Load())) }
	deliver := func() string {
		t.Helper()
		if err := s.Deliver(t.Context(), sampled); err != nil {
			t.Fatal(err)
		}
		return a.took()
	}
	if got := deliver() + " " + deliver(); got != "token-1 token-1" {
		t.Error(got)
	}
	ahead.Store(int64(85 * time.Second))
	if got := deliver(); got != "token-1" {
		t.Errorf("in its last minute %s", got)
	}
	s.tokens.busy.Wait()
	if got := deliver(); got != "token-2" {
		t.Errorf("behind that %s", got)
	}
	ahead.Store(int64(time.Hour))
	if got := deliver(); got != "token-3" {
		t.Errorf("behind its end %s", got)
	}
}

// While the endpoint is down, a valid token is used, and not every attempt requests another.
func TestTokenCannotBeReplaced(t *testing.T) {
	t.Parallel()
	var asked atomic.Int64
	e := newEndpoint(t, func(w http.ResponseWriter, _ *http.Request) {
		if asked.Add(1) > 1 {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"access_token":"token-1","token_type":"Bearer","expires_in":100}`))
	})
	s, a := oauthSink(t, e, nil)
	start := time.Now()
	var ahead atomic.Int64
	s.tokens.now = func() time.Time { return start.Add(time.Duration(ahead.Load())) }
	for i, want := range []int64{1, 2, 2, 2, 3} {
		switch i {
		case 1:
			ahead.Store(int64(85 * time.Second))
		case 4:
			ahead.Add(int64(renewRetryInterval))
		}
		if err := s.Deliver(t.Context(), sampled); err != nil || a.took() != "token-1" {
			t.Fatal(i, err)
		}
		s.tokens.busy.Wait()
		if n := asked.Load(); n != want {
			t.Errorf("behind delivery %d: asked %d times, not %d", i, n, want)
		}
	}
}

// An error of the endpoint does not contain the token that it issued before.
func TestTokenEndpointRepeatsToken(t *testing.T) {
	t.Parallel()
	const token = "issued-0123456789"
	var asked atomic.Int64
	e := newEndpoint(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if asked.Add(1) == 1 {
			_, _ = fmt.Fprintf(w, `{"access_token":%q,"token_type":"Bearer","expires_in":100}`, token)
			return
		}
		w.WriteHeader(http.StatusBadRequest)
		_, _ = fmt.Fprintf(w, `{"error":"invalid_grant","error_description":"%s is still valid"}`, token)
	})
	s, _ := oauthSink(t, e, nil)
	start := time.Now()
	if err := s.Deliver(t.Context(), sampled); err != nil {
		t.Fatal(err)
	}
	s.tokens.now = func() time.Time { return start.Add(time.Hour) }
	err := s.Deliver(t.Context(), sampled)
	if err == nil || strings.Contains(err.Error(), token) || !strings.Contains(err.Error(), "invalid_grant ((redacted) is still valid)") {
		t.Errorf("got %v, want the response without the token", err)
	}
}

// An error of the endpoint is retried and contains no secret. A new secret in the file fixes it.
func TestTokenEndpointFails(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		answer http.HandlerFunc
		change func(*OAuth2)
		want   string
	}{
		"refuses": {
			nil, func(o *OAuth2) { o.ClientSecret = "another-s3cret" },
			"it responded with status 401: invalid_client ((redacted) is not the secret)",
		},
		"breaks down": {func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(503)
			_, _ = w.Write([]byte("s3cretclient"))
		}, nil, "it responded with status 503"},
		"repeats the login": {func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(400)
			_, _ = fmt.Fprintf(w, `{"error":"invalid_request","error_description":%q}`, r.Header.Get("Authorization")+r.FormValue("client_secret"))
		}, nil, "it responded with status 400: invalid_request ((redacted))"},
		"repeats the login with an escaped secret": {func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(401)
			_, _ = fmt.Fprintf(w, `{"error":"invalid_client","error_description":%q}`, r.Header.Get("Authorization"))
		}, func(o *OAuth2) { o.ClientSecret = "/s3cret+client=" }, "it responded with status 401"},
		"no HTTP": {func(w http.ResponseWriter, _ *http.Request) {
			conn, _, err := http.NewResponseController(w).Hijack()
			if err == nil {
				_, _ = conn.Write([]byte("s3cretclient\r\n\r\n"))
				_ = conn.Close()
			}
		}, nil, "malformed HTTP response"},
		"switches protocols": {testkit.ServeUpgrade, nil, "switched to another protocol"},
		"redirects": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Location", "http://10.0.0.1/")
			w.WriteHeader(307)
		}, nil, "it responded with status 307"},
		"no token": {func(w http.ResponseWriter, _ *http.Request) {
			_,
				_ = w.Write([]byte(`{"token":"s3cretclient"}`))
		}, nil, "no token for a request"},
		"not JSON": {
			func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(`{"access_token":"s3cret`)) },
			nil, "no token for a request",
		},
		"a line break": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = w.Write([]byte(`{"access_token":"a\r\nX: y"}`))
		}, nil, "the access_token of its response contains white space"},
		"a huge token": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = fmt.Fprintf(w, `{"access_token":"%s"}`, strings.Repeat("a", maxTokenBytes+1))
		}, nil, "the access_token of its response contains 16385 bytes; a token has at most 16384"},
		"50 MiB": {func(w http.ResponseWriter, _ *http.Request) {
			for range 50 << 10 {
				if _, err := w.Write(make([]byte, 1<<10)); err != nil {
					return
				}
			}
		}, nil, "no token for a request"},
		"hangs up": {
			func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, nil,
			"closed the connection",
		},
		"absent": {nil, func(o *OAuth2) { o.TokenURL = "http://127.0.0.1:1/token/s3cretpath" }, "refused"},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEndpoint(t, c.answer)
			s, a := oauthSink(t, e, c.change)
			err := s.Deliver(t.Context(), sampled)
			if outcome, _ := relay.Classify(err); outcome != relay.OutcomeRetry ||
				!strings.Contains(fmt.Sprint(err), c.want) ||
				!strings.Contains(fmt.Sprint(err), "get a token from 127.0.0.1:") {
				t.Errorf("%s: %v", outcome, err)
			}
			if text := fmt.Sprint(err); strings.Contains(text, "s3cret") || strings.Contains(text, "czNjcmV0") ||
				strings.Contains(text, "zM2NyZX") || strings.Contains(text, "MzY3Jld") || a.took() != "" {
				t.Errorf("%v shows a secret, or something was sent", err)
			}
		})
	}
}

func TestHangingTokenEndpoint(t *testing.T) {
	t.Parallel()
	done := make(chan struct{})
	e := newEndpoint(t, func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-done:
		case <-r.Context().Done():
		}
	})
	defer close(done)
	s, _ := oauthSink(t, e, nil)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	err := s.Deliver(ctx, sampled)
	if outcome, _ := relay.Classify(err); outcome != relay.OutcomeRetry ||
		!strings.Contains(err.Error(), "no response") {
		t.Errorf("%v", err)
	}
	// Close ends the request; goleak would see it.
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

func TestClientSecretFile(t *testing.T) {
	t.Parallel()
	e := newEndpoint(t, nil)
	name := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(name, []byte("s3cretclient\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s, a := oauthSink(t, e, func(o *OAuth2) { o.ClientSecret, o.ClientSecretFile = "", name })
	if err := s.Deliver(t.Context(), sampled); err != nil || a.took() != "token-1" {
		t.Error(err)
	}
	x, err := s.Preview(t.Context(), sampled)
	if err != nil || !hasHeader(x, "Authorization", hiddenValue) || e.given.Load() != 1 {
		t.Errorf("%+v, %v", x, err)
	}
}
