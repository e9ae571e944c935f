package publicapi

import (
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/internal/apikey"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/auth"
	"github.com/hubrelay/hubrelay/relay/internal/clients"
)

// ops returns the key "ops" after a change.
func ops(change func(*auth.Key)) auth.Key {
	k := auth.Key{
		Name: "ops", AccountID: "acme", Hash: apikey.HashOf("ops"), Hubs: []string{"*"},
		Capabilities: []string{auth.CapabilityPublish},
	}
	change(&k)
	return k
}

// open opens a stream and returns the subscription that the hub received.
func (f *fixture) open(query string, headers ...string) clients.Subscription {
	f.t.Helper()
	if a := f.do("GET", pathNotifications+query, "", append(headers, accept...)...); a.status != 200 {
		f.t.Fatalf("%d %s", a.status, a.body)
	}
	return f.streams.got[len(f.streams.got)-1]
}

// checkKey calls CheckKey and leaves out the maximum age of the token.
func checkKey(s *clients.Subscription) clients.Authorization {
	a := s.CheckKey()
	if time.Until(a.Expires) > testStreamTTL/2 {
		a.Expires = time.Time{}
	}
	return a
}

func TestKeyStatus(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil, nil)
	token, account := "?token="+f.token("X-Hub-Id", "h1"), "?token="+f.token()
	streams := map[string]clients.Subscription{
		"hub, by token":     f.open(token),
		"account, by token": f.open(account),
		"hub, by key":       f.open("", "Authorization", "Bearer ops", "X-Hub-Id", "h1"),
		"account, by key":   f.open("", "Authorization", "Bearer ops"),
	}
	if a := f.raw(handshake(pathNotifications + "?token=" + f.token("X-Hub-Id", "h1"))); a.status != 101 {
		t.Fatalf("%d %s", a.status, a.body)
	}
	streams["hub, websocket"] = f.streams.got[len(f.streams.got)-1]
	valid, changed, later := clients.Authorization{}, clients.Authorization{ScopeChanged: true}, time.Now().Add(time.Hour)
	for _, tt := range []struct {
		name         string
		change       func(*auth.Key)
		hub, account clients.Authorization
	}{
		{"nothing", func(*auth.Key) {}, valid, valid},
		{"capabilities", func(k *auth.Key) { k.Capabilities = nil }, valid, valid},
		{"fewer hubs", func(k *auth.Key) { k.Hubs = []string{"h1"} }, valid, changed},
		{"equivalent hubs", func(k *auth.Key) { k.Hubs = []string{"h1", "*"} }, valid, valid},
		{"another account", func(k *auth.Key) { k.AccountID = "other" }, changed, changed},
		{"no account", func(k *auth.Key) { k.AccountID = "" }, changed, changed},
		{
			"an expiry", func(k *auth.Key) { k.Expires = later },
			clients.Authorization{Expires: later},
			clients.Authorization{Expires: later},
		},
		{"every account", func(k *auth.Key) { k.AccountID = auth.Wildcard }, changed, changed},
	} {
		if err := f.ring.Replace([]auth.Key{ops(tt.change)}); err != nil {
			t.Fatal(err)
		}
		for name, s := range streams {
			want := tt.account
			if s.Hub != "" {
				want = tt.hub
			}
			if got := checkKey(&s); got != want {
				t.Errorf("%s, %s: CheckKey() = %+v, want %+v", tt.name, name, got, want)
			}
		}
	}
}

func TestKeyStatus_KeyWithFewHubs(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil, nil)
	setHubs := func(hubs ...string) {
		t.Helper()
		if err := f.ring.Replace([]auth.Key{ops(func(k *auth.Key) { k.Hubs = hubs })}); err != nil {
			t.Fatal(err)
		}
	}
	setHubs("h1", "h2")
	hub, account := f.open("?token="+f.token("X-Hub-Id", "h1")), f.open("?token="+f.token())
	for _, tt := range []struct {
		hubs         []string
		refused      bool // the hub stream
		accountValid bool
	}{
		{[]string{"h2", "h1", "h2"}, false, true},
		{[]string{"h1", "h2", "h3"}, false, false},
		{[]string{"h1"}, false, false},
		{[]string{"h2"}, true, false},
		{nil, true, false},
	} {
		setHubs(tt.hubs...)
		if got := hub.CheckKey(); (got.Refused != nil) != tt.refused || got.ScopeChanged {
			t.Errorf("%q: hub stream: got %+v", tt.hubs, got)
		}
		if got := checkKey(&account); got != (clients.Authorization{ScopeChanged: !tt.accountValid}) {
			t.Errorf("%q: account stream: got %+v", tt.hubs, got)
		}
	}
}

// A token issued before its key was restricted opens only what the key may read now, also when it is used again.
func TestToken_RestrictedKey(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil, nil)
	unused, events, closed := "?token="+f.token(), "?token="+f.token(), "?token="+f.token("X-Hub-Id", "h2")
	f.open(events)
	if err := f.ring.Replace([]auth.Key{ops(func(k *auth.Key) { k.Hubs = []string{"h1"} })}); err != nil {
		t.Fatal(err)
	}
	f.open(events)
	if a := f.raw(handshake(pathNotifications + unused)); a.status != 101 {
		t.Fatalf("%d %s", a.status, a.body)
	}
	for _, s := range f.streams.got[1:] {
		if s.Allows("h2", "acme") || !s.Allows("h1", "acme") || checkKey(&s) != (clients.Authorization{}) {
			t.Errorf("the stream allows what the key allowed before: %+v", s)
		}
	}
	for _, a := range []response{
		f.raw(handshake(pathNotifications + closed)), f.do("GET", pathNotifications+closed, "", accept...),
	} {
		if code, _, _ := a.envelope(t); code != string(relay.CodeWrongHub) {
			t.Errorf("token of a hub that the key may no longer read: got %s", a.body)
		}
	}
}

func TestToken_RemovedOrExpiredKey(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil, nil)
	open := f.open("?token=" + f.token())
	token := f.token()
	for name, tt := range map[string]struct {
		keys []auth.Key
		code relay.Code
	}{
		"removed": {nil, relay.CodeAuthInvalid},
		"expired": {[]auth.Key{ops(func(k *auth.Key) { k.Expires = time.Now() })}, relay.CodeAuthExpired},
	} {
		if err := f.ring.Replace(tt.keys); err != nil {
			t.Fatal(err)
		}
		a := f.raw(handshake(pathNotifications + "?token=" + token))
		if code, _, _ := a.envelope(t); code != string(tt.code) {
			t.Errorf("%s: %s", name, a.body)
		}
		if got := open.CheckKey(); got.Refused == nil || got.Refused.Code != tt.code {
			t.Errorf("%s: status of the open stream: got %+v", name, got)
		}
	}
}
