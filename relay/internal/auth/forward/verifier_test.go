package forward

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/internal/apikey"
	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/auth"
	"github.com/hubrelay/hubrelay/relay/internal/clientaddr"
)

// endpoint knows the credential "good" for hub-1.
type endpoint struct {
	*httptest.Server
	requests atomic.Int32
	status   atomic.Int32  // overrides the answer
	body     atomic.Value  // overrides the body
	wait     chan struct{} // nil does not wait
}

func newEndpoint(t *testing.T) *endpoint {
	t.Helper()
	e := &endpoint{}
	e.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		e.requests.Add(1)
		if e.wait != nil {
			<-e.wait
		}
		if status := e.status.Load(); status != 0 {
			w.WriteHeader(int(status))
			return
		}
		var question struct {
			Credential string `json:"credential"`
			Hub        string `json:"hub_id"`
		}
		if err := json.NewDecoder(r.Body).Decode(&question); err != nil || r.Method != http.MethodPost ||
			question.Credential != "good" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		body, _ := e.body.Load().(string)
		if body == "" {
			body = `{"name":"alice","account_id":"acme","hubs":["hub-1"],"capabilities":["notifications-publish"]}`
		}
		_, _ = w.Write([]byte(body))
	}))
	t.Cleanup(e.Close)
	return e
}

// newTestVerifier returns a verifier whose clock is *now.
func newTestVerifier(url string, now *time.Time) *Verifier {
	v := NewVerifier(Options{
		URL: url, Timeout: 5 * time.Second, CacheTTL: time.Minute, StaleTTL: 5 * time.Minute,
		IsThrottled: func(netip.Addr) bool { return false }, Log: slog.New(slog.DiscardHandler),
	})
	v.now = func() time.Time { return *now }
	return v
}

var testAddr = netip.MustParseAddr("192.0.2.1")

func verify(v *Verifier, credential string) (*auth.Key, relay.Code) {
	key, refused := v.Verify(context.Background(), credential, "hub-1", testAddr)
	if refused != nil {
		return nil, refused.Code
	}
	return key, ""
}

func TestVerifier_CachesDecisions(t *testing.T) {
	t.Parallel()
	e, now := newEndpoint(t), time.Now()
	v := newTestVerifier(e.URL, &now)
	check := func(step, credential string, want relay.Code, requests int32) {
		t.Helper()
		key, code := verify(v, credential)
		if code != want || e.requests.Load() != requests {
			t.Errorf("%s: got code %q after %d requests, want %q after %d", step, code, e.requests.Load(), want,
				requests)
		}
		if key != nil && (key.Name != "forward:alice" || key.AccountID != "acme" || !key.CanReadHub("hub-1") ||
			key.CanReadHub("hub-2") || !key.HasCapability(auth.CapabilityPublish)) {
			t.Errorf("%s: got key %+v", step, key)
		}
	}
	check("first", "good", "", 1)
	check("again", "good", "", 1)
	check("unknown credential", "bad", relay.CodeAuthInvalid, 2)
	now = now.Add(time.Minute)
	check("after cache_ttl", "good", "", 3)
	e.status.Store(http.StatusInternalServerError)
	check("outage, cached", "good", "", 3)
	now = now.Add(time.Minute)
	check("outage, stale", "good", "", 4)
	check("outage, not cached", "bad", relay.CodeAuthUnavailable, 5)
	now = now.Add(5 * time.Minute)
	check("outage, too old", "good", relay.CodeAuthUnavailable, 6)
	e.status.Store(0)
	check("after the outage", "good", "", 7)
	e.status.Store(http.StatusUnauthorized)
	now = now.Add(time.Minute)
	check("revoked", "good", relay.CodeAuthInvalid, 8)
	e.status.Store(http.StatusInternalServerError)
	check("revoked, then outage", "good", relay.CodeAuthUnavailable, 9)
}

// No answer but a complete 200 gives access.
func TestVerifier_RejectsAnswers(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		status int32
		body   string
		code   relay.Code
	}{
		"403":               {http.StatusForbidden, "", relay.CodeAuthInvalid},
		"404":               {http.StatusNotFound, "", relay.CodeAuthInvalid},
		"204":               {http.StatusNoContent, "", relay.CodeAuthUnavailable},
		"302":               {http.StatusFound, "", relay.CodeAuthUnavailable},
		"429":               {http.StatusTooManyRequests, "", relay.CodeAuthUnavailable},
		"no JSON":           {0, "<html>", relay.CodeAuthUnavailable},
		"no name":           {0, `{"hubs":["*"]}`, relay.CodeAuthUnavailable},
		"name for terminal": {0, `{"name":"a\u001b[2J","hubs":["*"]}`, relay.CodeAuthUnavailable},
		"long account":      {0, `{"name":"a","account_id":"` + strings.Repeat("a", 257) + `"}`, relay.CodeAuthUnavailable},
		"expired":           {0, `{"name":"a","hubs":["*"],"expires":"2020-01-01T00:00:00Z"}`, relay.CodeAuthExpired},
		"endless":           {0, `{"name":"` + strings.Repeat("a", maxResponse) + `"}`, relay.CodeAuthUnavailable},
	} {
		e, now := newEndpoint(t), time.Now()
		e.status.Store(tt.status)
		e.body.Store(tt.body)
		if key, code := verify(newTestVerifier(e.URL, &now), "good"); code != tt.code {
			t.Errorf("%s: got key %+v, code %q, want %s", name, key, code, tt.code)
		}
	}
	e, now := newEndpoint(t), time.Now()
	e.Close()
	if _, code := verify(newTestVerifier(e.URL, &now), "good"); code != relay.CodeAuthUnavailable {
		t.Errorf("closed endpoint: got code %q, want %s", code, relay.CodeAuthUnavailable)
	}
}

func TestVerifier_Expiry(t *testing.T) {
	t.Parallel()
	e, now := newEndpoint(t), time.Now()
	v := newTestVerifier(e.URL, &now)
	e.body.Store(`{"name":"a","hubs":["*"],"expires":"` + now.Add(10*time.Second).UTC().Format(time.RFC3339) + `"}`)
	if _, code := verify(v, "good"); code != "" {
		t.Fatal(code)
	}
	e.status.Store(http.StatusInternalServerError)
	now = now.Add(10 * time.Second)
	if _, code := verify(v, "good"); code != relay.CodeAuthUnavailable {
		t.Errorf("after expires: got code %q, want %s", code, relay.CodeAuthUnavailable)
	}
}

// A changed key invalidates decisions and grants of its hub only.
func TestVerifier_MarkChanged(t *testing.T) {
	t.Parallel()
	e, now := newEndpoint(t), time.Now()
	v := newTestVerifier(e.URL, &now)
	keys, err := auth.NewKeyring(nil)
	if err != nil {
		t.Fatal(err)
	}
	a := auth.NewAuthenticator(auth.AuthenticatorOptions{Keys: keys, Forward: v})
	key, _ := verify(v, "good")
	grant := key.Grant("hub-1")
	now = now.Add(time.Second)
	v.MarkChanged("acme", "hub-2")
	v.MarkChanged("another", "hub-1")
	if _, refused := a.CurrentGrant(grant); refused != nil {
		t.Errorf("another hub or account: %v", refused)
	}
	if _, code := verify(v, "good"); code != "" || e.requests.Load() != 1 {
		t.Errorf("another hub or account: got code %q after %d requests, want a cached decision", code, e.requests.Load())
	}
	v.MarkChanged("acme", "hub-1")
	if _, refused := a.CurrentGrant(grant); refused == nil || refused.Code != relay.CodeAuthInvalid {
		t.Errorf("changed: got error %v, want %s", refused, relay.CodeAuthInvalid)
	}
	e.status.Store(http.StatusInternalServerError)
	if _, code := verify(v, "good"); code != relay.CodeAuthUnavailable {
		t.Errorf("changed, outage: got code %q, want %s", code, relay.CodeAuthUnavailable)
	}
	e.status.Store(0)
	now = now.Add(time.Second)
	key, code := verify(v, "good")
	if code != "" {
		t.Fatal(code)
	}
	if _, refused := a.CurrentGrant(key.Grant("hub-1")); refused != nil {
		t.Errorf("verified again: %v", refused)
	}
	now = now.Add(time.Second)
	for i := range maxChangedHubs + 1 {
		v.MarkChanged("acme", "other-"+string(rune(i)))
	}
	if _, refused := a.CurrentGrant(key.Grant("hub-1")); refused == nil {
		t.Error("too many changes to remember must make all grants of the account invalid")
	}
}

// A publisher that may speak for all accounts cannot fill the memory. Beyond the limit, all decisions are made again.
func TestCredentialChanges_LimitsAllAccounts(t *testing.T) {
	t.Parallel()
	now := time.Now()
	var c credentialChanges
	for account := range maxChanges/maxChangedHubs + 1 {
		for hub := range maxChangedHubs {
			c.add(fmt.Sprint("account-", account), fmt.Sprint("hub-", hub), now)
		}
	}
	if !c.all.Equal(now) || c.count >= maxChangedHubs || len(c.accounts) != 1 {
		t.Errorf("got %d changes of %d accounts, all at %s; want the changes of the last account", c.count, len(c.accounts), c.all)
	}
}

// An account cannot invalidate the decisions about others, with whatever notifications it publishes.
func TestCredentialChanges_OfOthers(t *testing.T) {
	t.Parallel()
	now := time.Now()
	var c credentialChanges
	for i := range 3 * maxChangedHubs {
		c.add("hostile", fmt.Sprint("hub-", i), now)
	}
	c.add("", "other-hub", now)
	for name, g := range map[string]auth.Grant{
		"the same hub":            {Account: "acme", Hub: "hub-1", Hubs: []string{"hub-1"}},
		"bound to a hub":          {Account: "acme", Hub: "hub-1", Hubs: []string{"*"}},
		"all hubs of the account": {Account: "acme", Hubs: []string{"*"}},
		"the platform":            {Account: "*", Hub: "hub-1", Hubs: []string{"*"}},
	} {
		g.VerifiedAt = now.Add(-time.Second)
		if c.changedSince(&g) {
			t.Errorf("%s: got changed", name)
		}
	}
	for name, g := range map[string]auth.Grant{
		"too many hubs":       {Account: "hostile", Hub: "hub-x", Hubs: []string{"*"}},
		"without an account":  {Account: "acme", Hub: "other-hub", Hubs: []string{"*"}},
		"several hubs":        {Account: "acme", Hubs: []string{"a", "other-hub"}},
		"all, of no account":  {Account: "", Hubs: []string{"*"}},
		"all, of the account": {Account: "hostile", Hubs: []string{"*"}},
	} {
		g.VerifiedAt = now.Add(-time.Second)
		if !c.changedSince(&g) {
			t.Errorf("%s: got unchanged", name)
		}
	}
}

// A change during a request makes its response invalid, and the endpoint receives another request.
func TestVerifier_ChangeDuringRequest(t *testing.T) {
	t.Parallel()
	for _, changes := range []int{1, maxAttempts} {
		e, now := newEndpoint(t), time.Now()
		e.wait = make(chan struct{})
		v := newTestVerifier(e.URL, &now)
		v.now = time.Now
		result := make(chan relay.Code)
		go func() {
			_, code := verify(v, "good")
			result <- code
		}()
		for i := range changes {
			testkit.WaitFor(t, "a request", func() bool { return e.requests.Load() == int32(i+1) })
			v.MarkChanged("acme", "hub-1")
			e.wait <- struct{}{}
		}
		close(e.wait)
		want := relay.Code("")
		if changes == maxAttempts {
			want = relay.CodeAuthUnavailable
		}
		if code := <-result; code != want {
			t.Errorf("%d changes: got code %q, want %q", changes, code, want)
		}
	}
}

// A throttled address does not reach the endpoint, except with decisions that are remembered.
func TestVerifier_AsksThrottleFirst(t *testing.T) {
	t.Parallel()
	e, now := newEndpoint(t), time.Now()
	v := newTestVerifier(e.URL, &now)
	if _, code := verify(v, "good"); code != "" {
		t.Fatal(code)
	}
	v.opts.IsThrottled = func(netip.Addr) bool { return true }
	if _, code := verify(v, "bad"); code != relay.CodeRateLimiting || e.requests.Load() != 1 {
		t.Errorf("got code %q after %d requests, want %s after 1", code, e.requests.Load(), relay.CodeRateLimiting)
	}
	if _, code := verify(v, "good"); code != "" {
		t.Errorf("a remembered decision: got code %q", code)
	}
	v.MarkChanged("acme", "hub-1")
	now = now.Add(time.Second)
	if _, code := verify(v, "good"); code != "" || e.requests.Load() != 2 {
		t.Errorf("a remembered decision that may have changed: got code %q after %d requests, want 2", code, e.requests.Load())
	}
}

// One address cannot use all requests to the endpoint, and all addresses together do not wait without a limit.
func TestVerifier_LimitsPendingRequests(t *testing.T) {
	t.Parallel()
	e, now := newEndpoint(t), time.Now()
	e.wait = make(chan struct{})
	v := newTestVerifier(e.URL, &now)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var callers sync.WaitGroup
	flood := func(addr netip.Addr, n int) (rejected int) {
		var count atomic.Int32
		for i := range n {
			callers.Go(func() {
				_, refused := v.Verify(ctx, fmt.Sprint(addr, i), "hub-1", addr)
				if ctx.Err() == nil && refused != nil && refused.Code == relay.CodeAuthUnavailable {
					count.Add(1)
				}
			})
		}
		testkit.WaitForValue(t, "the flood to be rejected or to wait", n, func() int {
			v.pending.mu.Lock()
			defer v.pending.mu.Unlock()
			return int(count.Load()) + v.pending.byAddress[clientaddr.Group(addr)].countPending()
		})
		return int(count.Load())
	}
	if got, want := flood(testAddr, 500), 500-maxPendingPerAddress; got != want {
		t.Errorf("one address: got %d rejected requests, want %d", got, want)
	}
	for i := range maxPending / maxPendingPerAddress {
		flood(netip.AddrFrom4([4]byte{198, 51, 100, byte(i)}), maxPendingPerAddress)
	}
	v.pending.mu.Lock()
	if n := len(v.pending.byKey); n != maxPending {
		t.Errorf("got %d pending requests, want %d", n, maxPending)
	}
	v.pending.mu.Unlock()
	// Requests whose callers have left end, although the endpoint does not respond.
	cancel()
	callers.Wait()
	testkit.WaitFor(t, "all requests to end", func() bool {
		v.pending.mu.Lock()
		defer v.pending.mu.Unlock()
		return len(v.pending.byKey) == 0 && len(v.pending.byAddress) == 0
	})
	close(e.wait)
	if _, code := verify(v, "good"); code != "" {
		t.Errorf("after the flood: got code %q", code)
	}
}

func TestVerifier_SharesRequests(t *testing.T) {
	t.Parallel()
	e, now := newEndpoint(t), time.Now()
	e.wait = make(chan struct{})
	v := newTestVerifier(e.URL, &now)
	var callers sync.WaitGroup
	var waiting atomic.Int32
	for range 50 {
		callers.Go(func() {
			waiting.Add(1)
			if _, code := verify(v, "good"); code != "" {
				t.Errorf("got code %q", code)
			}
		})
	}
	testkit.WaitFor(t, "all callers and a request", func() bool { return waiting.Load() == 50 && e.requests.Load() > 0 })
	close(e.wait)
	callers.Wait()
	if n := e.requests.Load(); n > 5 {
		t.Errorf("50 callers made %d requests, want about one", n)
	}
}

// A holder of one credential cannot push the decisions about others out of the cache.
func TestVerifier_OneCredentialForManyHubs(t *testing.T) {
	t.Parallel()
	e, now := newEndpoint(t), time.Now()
	e.body.Store(`{"name":"a","hubs":["*"]}`)
	v := newTestVerifier(e.URL, &now)
	if _, refused := v.Verify(t.Context(), "good", "hub-0", testAddr); refused != nil {
		t.Fatal(refused)
	}
	victim := apikey.HashOf("victim")
	v.remember(victim, "hub-1", &auth.Key{VerifiedAt: now, Expires: now.Add(time.Hour), LastUsed: new(atomic.Int64)}, nil)
	for i := range 3 * maxHubs {
		if _, refused := v.Verify(t.Context(), "good", fmt.Sprint("hub-", i), testAddr); refused != nil {
			t.Fatal(refused)
		}
	}
	if n := len(v.cache.keys[apikey.HashOf("good")]); n > maxHubs {
		t.Errorf("%d decisions about one credential are remembered, want at most %d", n, maxHubs)
	}
	if v.cache.findKey(victim, "hub-1") == nil {
		t.Error("the decision about the other credential is forgotten")
	}
}

// The URL may contain a password.
func TestVerifier_LogsNoURL(t *testing.T) {
	t.Parallel()
	e, now := newEndpoint(t), time.Now()
	e.Close()
	var log bytes.Buffer
	v := newTestVerifier(strings.Replace(e.URL, "http://", "http://u:hunter@", 1)+"/?key=hunter", &now)
	v.opts.Log = slog.New(slog.NewTextHandler(&log, nil))
	if _, code := verify(v, "good"); code != relay.CodeAuthUnavailable {
		t.Fatalf("got code %q", code)
	}
	if text := log.String(); strings.Contains(text, "hunter") || !strings.Contains(text, "connection refused") {
		t.Errorf("the log is %s", text)
	}
}

// The endpoint may repeat the credential in its status line.
func TestVerifier_LogsNoCredential(t *testing.T) {
	t.Parallel()
	for _, response := range []string{
		"HTTP/1.1 500 %s\r\nContent-Length: 0\r\n\r\n",
		"%s\r\n\r\n",
		"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + `{"name":"x","expires":"%s"}`,
	} {
		e := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			conn, _, err := http.NewResponseController(w).Hijack()
			if err == nil {
				_, _ = fmt.Fprintf(conn, response, "s3cret-credential /s3cret-path")
				_ = conn.Close()
			}
		}))
		now := time.Now()
		var log bytes.Buffer
		v := newTestVerifier(e.URL+"/s3cret-path", &now)
		v.opts.Log = slog.New(slog.NewTextHandler(&log, nil))
		if _, code := verify(v, "s3cret-credential"); code != relay.CodeAuthUnavailable {
			t.Errorf("%s: got code %q", response, code)
		}
		e.Close()
		if text := log.String(); text == "" || strings.Contains(text, "s3cret") {
			t.Errorf("%s: the log is %s", response, text)
		}
	}
}
