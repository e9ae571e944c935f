package adminserver

import (
	"crypto/sha256"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hubrelay/hubrelay/internal/adminapi"
	"github.com/hubrelay/hubrelay/relay/internal/audit"
)

type recordedAudit []audit.Entry

func (r *recordedAudit) Record(e audit.Entry) { *r = append(*r, e) }

// browser calls a handler as a page of its origin does.
type browser struct {
	t      *testing.T
	admin  http.Handler
	cookie *http.Cookie
}

const origin = "http://127.0.0.1:9091"

func (b *browser) request(method, path, body string) *http.Request {
	r := httptest.NewRequest(method, origin+path, strings.NewReader(body))
	r.Header.Set("Sec-Fetch-Site", "same-origin")
	if b.cookie != nil {
		r.AddCookie(b.cookie)
	}
	return r
}

func (b *browser) call(method, path, body string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	b.admin.ServeHTTP(w, b.request(method, path, body))
	for _, c := range w.Result().Cookies() {
		b.cookie = c
	}
	return w
}

// signIn signs in with a token and returns its session.
func (b *browser) signIn(token string) {
	b.t.Helper()
	if w := b.call("POST", adminapi.SessionPath, fmt.Sprintf(`{"token":%q}`, token)); w.Code != 200 || b.cookie == nil {
		b.t.Fatalf("sign in: got %d %s, want 200 and a cookie", w.Code, w.Body)
	}
}

func testTokens() []Token {
	return []Token{
		{Name: "oncall", Role: adminapi.RoleOperator, Hash: sha256.Sum256([]byte("secret-of-oncall"))},
		{Name: "dashboard", Role: adminapi.RoleViewer, Hash: sha256.Sum256([]byte("secret-of-dashboard"))},
	}
}

func newWithSessions(o Options) (*Admin, *Tokens) {
	tokens := new(Tokens)
	tokens.Replace(testTokens())
	o.Sessions = NewSessions(tokens)
	o.Authenticator = o.Sessions
	return New(o), tokens
}

func TestSessions_SignInAndOut(t *testing.T) {
	var log recordedAudit
	admin, _ := newWithSessions(Options{Sinks: &fakeSinks{}, Audit: &log, Node: "n1", Version: "v9"})
	b := &browser{t: t, admin: admin}
	if w := b.call("GET", adminapi.SessionPath, ""); w.Code != 401 || len(log) != 0 {
		t.Errorf("before: got %d and %v, want 401, which is no failed authentication", w.Code, log)
	}
	if w := b.call("POST", adminapi.SessionPath, `{"token":"secret-of-nobody"}`); w.Code != 401 || b.cookie != nil ||
		len(log) != 1 {
		t.Errorf("wrong token: got %d %s, a cookie %v and %v, want 401 in the audit log", w.Code, w.Body, b.cookie, log)
	}
	b.signIn("secret-of-oncall")
	if c := b.cookie; !c.HttpOnly || c.SameSite != http.SameSiteStrictMode || c.Path != "/" || c.Secure ||
		c.Name != "hubrelay_session_9091" || strings.Contains(c.Value, "secret") || c.MaxAge != 0 {
		t.Errorf("got cookie %v", c)
	}
	want := `{"data":{"name":"oncall","role":"operator","relay":"","node":"n1","version":"v9","can_sign_out":true}}` + "\n"
	if w := b.call("GET", adminapi.SessionPath, ""); w.Code != 200 || w.Body.String() != want {
		t.Errorf("session: got %d %s, want %s", w.Code, w.Body, want)
	}
	if w := b.call("POST", "/api/sinks/a/pause", ""); w.Code != 200 {
		t.Errorf("pause: got %d %s, want 200", w.Code, w.Body)
	}
	if e := log[len(log)-1]; e.Actor != "admin oncall" || e.Action != "sinks.pause" {
		t.Errorf("got audit entry %+v, want the pause by the token of the session", e)
	}
	if e := log[1]; e.Actor != "admin oncall" || e.Action != audit.ActionAdminAuthenticate || e.Result != audit.ResultOK {
		t.Errorf("got audit entry %+v, want the sign-in", e)
	}
	lost := *b.cookie
	if w := b.call("DELETE", adminapi.SessionPath, ""); w.Code != 204 || b.cookie.MaxAge >= 0 {
		t.Errorf("sign out: got %d and %v, want 204 and a removed cookie", w.Code, b.cookie)
	}
	b.cookie = &lost
	if w := b.call("GET", "/api/sinks", ""); w.Code != 401 || !strings.Contains(w.Body.String(), "401.auth-expired") {
		t.Errorf("after sign-out: got %d %s, want 401", w.Code, w.Body)
	}
}

func TestSessions_SecureCookie(t *testing.T) {
	admin, _ := newWithSessions(Options{})
	r := httptest.NewRequest("POST", "https://127.0.0.1:9091"+adminapi.SessionPath, strings.NewReader(`{"token":"secret-of-oncall"}`))
	w := httptest.NewRecorder()
	admin.ServeHTTP(w, r)
	if c := w.Result().Cookies(); len(c) != 1 || !c[0].Secure || !strings.HasPrefix(c[0].Name, "__Host-") {
		t.Errorf("got %v, want a cookie for TLS only", c)
	}
}

// A web page of another origin can neither sign in nor use a session, even if a browser sends the cookie.
func TestSessions_RejectOtherOrigins(t *testing.T) {
	admin, _ := newWithSessions(Options{Sinks: &fakeSinks{}})
	b := &browser{t: t, admin: admin}
	b.signIn("secret-of-oncall")
	for _, header := range []map[string]string{
		{},
		{"Sec-Fetch-Site": "cross-site"},
		{"Sec-Fetch-Site": "same-site"},
		{"Origin": "null"},
		{"Origin": "http://127.0.0.1:9092"},
		{"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"},
	} {
		for _, request := range []string{"POST /api/sinks/a/pause", "POST " + adminapi.SessionPath, "DELETE " + adminapi.SessionPath} {
			b.signIn("secret-of-oncall")
			method, path, _ := strings.Cut(request, " ")
			r := b.request(method, path, `{}`)
			r.Header.Del("Sec-Fetch-Site")
			for name, value := range header {
				r.Header.Set(name, value)
			}
			w := httptest.NewRecorder()
			admin.ServeHTTP(w, r)
			if path == adminapi.SessionPath && len(header) == 0 {
				continue // a client that is no browser
			}
			if w.Code != 403 {
				t.Errorf("%s with %v: got %d %s, want 403", request, header, w.Code, w.Body)
			}
		}
	}
	r := b.request("GET", "/", "")
	r.Header.Set("Sec-Fetch-Site", "cross-site")
	r.Header.Set("Sec-Fetch-Mode", "navigate")
	r.Header.Set("Sec-Fetch-Dest", "document")
	w := httptest.NewRecorder()
	admin.ServeHTTP(w, r)
	if w.Code != 200 || w.Header().Get("Content-Security-Policy") == "" || w.Header().Get("X-Frame-Options") != "DENY" {
		t.Errorf("a link to the console: got %d %v, want the page with its headers", w.Code, w.Header())
	}
}

func TestSessions_End(t *testing.T) {
	for name, tt := range map[string]struct {
		wait   time.Duration
		steps  int
		status int
	}{
		"idle":        {sessionIdleTime, 1, 401},
		"used":        {sessionIdleTime - time.Second, 3, 200},
		"end of life": {sessionIdleTime - time.Second, 13, 401},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				admin, _ := newWithSessions(Options{Sinks: &fakeSinks{}})
				b := &browser{t: t, admin: admin}
				b.signIn("secret-of-dashboard")
				status := 0
				for range tt.steps {
					time.Sleep(tt.wait)
					status = b.call("GET", "/api/sinks", "").Code
				}
				if status != tt.status {
					t.Errorf("got %d after %d times %s, want %d", status, tt.steps, tt.wait, tt.status)
				}
			})
		})
	}
	t.Run("removed token", func(t *testing.T) {
		admin, tokens := newWithSessions(Options{Sinks: &fakeSinks{}})
		b := &browser{t: t, admin: admin}
		other := &browser{t: t, admin: admin}
		b.signIn("secret-of-dashboard")
		other.signIn("secret-of-oncall")
		all := testTokens()
		tokens.Replace(all[:1])
		tokens.Replace(all) // does not bring the session back
		if w := b.call("GET", "/api/sinks", ""); w.Code != 401 {
			t.Errorf("got %d, want 401", w.Code)
		}
		if w := other.call("GET", "/api/sinks", ""); w.Code != 200 {
			t.Errorf("with another token: got %d, want 200", w.Code)
		}
	})
	t.Run("too many", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			admin, _ := newWithSessions(Options{Sinks: &fakeSinks{}})
			first, second := &browser{t: t, admin: admin}, &browser{t: t, admin: admin}
			first.signIn("secret-of-dashboard")
			time.Sleep(time.Second)
			second.signIn("secret-of-dashboard")
			time.Sleep(time.Second)
			_ = first.call("GET", "/api/sinks", "")
			for range maxTokenSessions - 1 {
				time.Sleep(time.Millisecond)
				(&browser{t: t, admin: admin}).signIn("secret-of-dashboard")
			}
			one, two := first.call("GET", "/api/sinks", "").Code, second.call("GET", "/api/sinks", "").Code
			other := &browser{t: t, admin: admin}
			other.signIn("secret-of-oncall")
			if code := first.call("GET", "/api/sinks", "").Code; code != 200 {
				t.Errorf("after a sign-in with another token: got %d, want 200", code)
			}
			if one != 200 || two != 401 {
				t.Errorf("got %d for the session that was used and %d for the other, want 200 and 401", one, two)
			}
		})
	})
}

// A server on another port of the host can add cookies, but neither lock out nor replace a session.
func TestSessions_IgnoreOtherCookies(t *testing.T) {
	admin, _ := newWithSessions(Options{Sinks: &fakeSinks{}})
	b := &browser{t: t, admin: admin}
	b.signIn("secret-of-oncall")
	r := httptest.NewRequest("GET", origin+"/api/sinks", nil)
	r.AddCookie(&http.Cookie{Name: b.cookie.Name, Value: "x"})
	r.AddCookie(b.cookie)
	w := httptest.NewRecorder()
	admin.ServeHTTP(w, r)
	if w.Code != 200 {
		t.Errorf("got %d %s, want 200", w.Code, w.Body)
	}
	first := b.cookie
	b.signIn("secret-of-oncall")
	b.cookie = first
	if w := b.call("GET", "/api/sinks", ""); w.Code != 401 {
		t.Errorf("the session before another sign-in of the browser: got %d, want 401", w.Code)
	}
}

// Everybody can send a request to sign in, so its body is small, and one that cannot be read counts as a failure.
func TestSignIn_Limits(t *testing.T) {
	admin, _ := newWithSessions(Options{})
	b := &browser{t: t, admin: admin}
	if w := b.call("POST", adminapi.SessionPath, `{"token":"`+strings.Repeat("x", maxSignIn)+`"}`); w.Code != 413 {
		t.Errorf("a large body: got %d %s, want 413", w.Code, w.Body)
	}
	code := 0
	for range 200 {
		if code = b.call("POST", adminapi.SessionPath, "x").Code; code != 400 {
			break
		}
	}
	if code != 429 {
		t.Errorf("200 bodies that are not JSON: the last response was %d, want 429", code)
	}
}
