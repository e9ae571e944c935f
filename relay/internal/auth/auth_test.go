package auth

import (
	"context"
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/internal/apikey"
	"github.com/hubrelay/hubrelay/relay"
)

var noon = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

func newTestKeyring(t *testing.T, keys ...Key) *Keyring {
	t.Helper()
	r, err := NewKeyring(keys)
	if err != nil {
		t.Fatal(err)
	}
	r.now = func() time.Time { return noon }
	return r
}

func authenticate(r *Keyring, header string) (*Key, *relay.Error) {
	a := NewAuthenticator(AuthenticatorOptions{Keys: r})
	return a.Authenticate(context.Background(), Request{Authorization: []string{header}})
}

func code(e *relay.Error) relay.Code {
	if e == nil {
		return ""
	}
	return e.Code
}

func TestAuthenticate(t *testing.T) {
	t.Parallel()
	r := newTestKeyring(t,
		Key{Name: "ops", Hash: apikey.HashOf("secret-1")},
		Key{Name: "old", Hash: apikey.HashOf("secret-2"), Expires: noon},
		Key{Name: "new", Hash: apikey.HashOf("secret-3"), Expires: noon.Add(time.Second)},
	)
	for _, tt := range []struct {
		header, name string
		code         relay.Code
	}{
		{"Bearer secret-1", "ops", ""},
		{"bearer  secret-1 ", "ops", ""},
		{"BEARER secret-3", "new", ""},
		{"Bearer secret-2", "", relay.CodeAuthExpired},
		{"Bearer secret-9", "", relay.CodeAuthInvalid},
		{"Bearer secret-1 x", "", relay.CodeAuthInvalid},
		{"Bearer ", "", relay.CodeAuthInvalid},
		{"Bearer", "", relay.CodeAuthInvalid},
		{"Basic secret-1", "", relay.CodeAuthInvalid},
		{"secret-1", "", relay.CodeAuthInvalid},
		{"", "", relay.CodeAuthInvalid},
		{"Bearer " + strings.Repeat("x", 100_000), "", relay.CodeAuthInvalid},
	} {
		k, err := authenticate(r, tt.header)
		if code(err) != tt.code || (k != nil && k.Name != tt.name) || (k == nil) != (tt.name == "") {
			t.Errorf("Authenticate(%.40q) = %v, %v; want %q, %q", tt.header, k, err, tt.name, tt.code)
		}
		if err != nil && strings.Contains(err.Error(), "secret-") {
			t.Errorf("the error %q contains the key", err)
		}
	}
}

func TestNewKeyring_RejectsAmbiguousKeys(t *testing.T) {
	t.Parallel()
	for name, keys := range map[string][]Key{
		"no name":     {{Hash: apikey.HashOf("a")}},
		"same name":   {{Name: "a", Hash: apikey.HashOf("a")}, {Name: "a", Hash: apikey.HashOf("b")}},
		"same secret": {{Name: "a", Hash: apikey.HashOf("a")}, {Name: "b", Hash: apikey.HashOf("a")}},
	} {
		if _, err := NewKeyring(keys); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	r := newTestKeyring(t, Key{Name: "a", Hash: apikey.HashOf("a")})
	if err := r.Replace([]Key{{Name: ""}}); err == nil {
		t.Error("Replace accepted a key without a name")
	}
	if _, err := authenticate(r, "Bearer a"); err != nil {
		t.Errorf("after a failed Replace: got error %v, want the old keys", err)
	}
}

func TestCurrentGrant(t *testing.T) {
	t.Parallel()
	key := Key{Name: "ops", Hash: apikey.HashOf("a"), Hubs: []string{"h1"}}
	g := key.Grant("h1")
	changed := func(f func(*Key)) Key { k := key; f(&k); return k }
	for name, tt := range map[string]struct {
		keys []Key
		code relay.Code
	}{
		"same":       {[]Key{{Name: "x"}, key}, ""},
		"removed":    {[]Key{{Name: "x"}}, relay.CodeAuthInvalid},
		"new secret": {[]Key{changed(func(k *Key) { k.Hash = apikey.HashOf("b") })}, relay.CodeAuthInvalid},
		"expired":    {[]Key{changed(func(k *Key) { k.Expires = noon })}, relay.CodeAuthExpired},
		"other hubs": {[]Key{changed(func(k *Key) { k.Hubs = []string{"h2"} })}, relay.CodeWrongHub},
		"all hubs":   {[]Key{changed(func(k *Key) { k.Hubs = []string{Wildcard} })}, ""},
	} {
		current, err := newTestKeyring(t, tt.keys...).CurrentGrant(g)
		if code(err) != tt.code || (err == nil) != (current.Hub == "h1") {
			t.Errorf("%s: CurrentGrant() = %+v, %q, want %q", name, current, code(err), tt.code)
		}
	}
}

// The grant for a hub does not contain the other hubs of the key, which a token would store.
func TestGrant_OfHub(t *testing.T) {
	t.Parallel()
	key := Key{Name: "ops", Hubs: []string{"h1", "h2"}}
	for hub, want := range map[string][]string{"": {"h1", "h2"}, "h2": {"h2"}, "h3": nil} {
		if got := key.Grant(hub).Hubs; !slices.Equal(got, want) {
			t.Errorf("hub %q: got %q, want %q", hub, got, want)
		}
	}
	key.Hubs = []string{Wildcard}
	if g := key.Grant("h1"); !g.Allows("h1", "") || g.Allows("h2", "") {
		t.Errorf("all hubs: got %+v, want a grant for one hub", g)
	}
}

// A token issued before the key was restricted allows no more than the key does now.
func TestCurrentGrant_RestrictedKey(t *testing.T) {
	t.Parallel()
	key := Key{Name: "ops", Hash: apikey.HashOf("a"), AccountID: Wildcard, Hubs: []string{Wildcard}}
	g := key.Grant("")
	key.AccountID, key.Hubs, key.Expires = "acme", []string{"h1"}, noon.Add(time.Hour)
	current, err := newTestKeyring(t, key).CurrentGrant(g)
	if err != nil || current.Allows("h2", "acme") || current.Allows("h1", "other") ||
		!current.Allows("h1", "acme") || current.Expires != key.Expires {
		t.Errorf("CurrentGrant() = %+v, %v", current, err)
	}
}

// Grants with the same visibility key must allow the same notifications.
func TestVisibilityKey_EqualKeysAllowTheSame(t *testing.T) {
	t.Parallel()
	accounts := []string{"", "a", "b", Wildcard}
	hubLists := [][]string{
		nil, {"h1"}, {"h1", "h2"}, {"h2", "h1", "h2"}, {"h1,h2"}, {Wildcard}, {"h1", Wildcard},
	}
	seen := make(map[string]Grant)
	for _, hub := range []string{"", "h1"} {
		for _, account := range accounts {
			for _, hubs := range hubLists {
				g := Grant{Hub: hub, Account: account, Hubs: hubs}
				key := hub + "|" + g.VisibilityKey()
				other, ok := seen[key]
				if !ok {
					seen[key] = g
					continue
				}
				if !g.SameVisibility(&other) {
					t.Errorf("SameVisibility() = false for %+v and %+v", g, other)
				}
				for _, h := range []string{"h1", "h2", "h1,h2", "h3"} {
					for _, a := range accounts {
						if g.Allows(h, a) != other.Allows(h, a) {
							t.Errorf("%+v and %+v have the same key, but differ for hub %q, account %q", g, other, h, a)
						}
					}
				}
			}
		}
	}
	one := Grant{Hub: "h1", Account: "a", Hubs: []string{"h1"}}
	all := Grant{Hub: "h1", Account: "a", Hubs: []string{Wildcard}}
	if one.VisibilityKey() != all.VisibilityKey() {
		t.Error("keys of one account that may read a hub have different visibility keys")
	}
	for _, hubs := range [][2][]string{{{"h1", "h2"}, {"h2", "h1", "h1"}}, {{Wildcard}, {"h1", Wildcard}}} {
		a, b := Grant{Account: "a", Hubs: hubs[0]}, Grant{Account: "a", Hubs: hubs[1]}
		if !a.SameVisibility(&b) || a.SameVisibility(&Grant{Account: "a"}) {
			t.Errorf("SameVisibility() is wrong for %q and %q", hubs[0], hubs[1])
		}
	}
}

func TestGrantAllows(t *testing.T) {
	t.Parallel()
	all, one := []string{Wildcard}, []string{"h1"}
	for _, tt := range []struct {
		name         string
		g            Grant
		hub, account string
		want         bool
	}{
		{"hub stream", Grant{Hub: "h1", Account: "a", Hubs: all}, "h1", "a", true},
		{"hub stream, other hub", Grant{Hub: "h1", Account: "a", Hubs: all}, "h2", "a", false},
		{"hub stream, other account", Grant{Hub: "h1", Account: "a", Hubs: all}, "h1", "b", false},
		{"hub stream, no account", Grant{Hub: "h1", Account: "a", Hubs: all}, "h1", "", true},
		{"account stream", Grant{Account: "a", Hubs: all}, "h2", "a", true},
		{"account stream, closed hub", Grant{Account: "a", Hubs: one}, "h2", "a", false},
		{"account stream, other account", Grant{Account: "a", Hubs: all}, "h1", "b", false},
		{"account stream, no account", Grant{Account: "a", Hubs: one}, "h1", "", true},
		{"platform", Grant{Account: Wildcard, Hubs: all}, "h7", "b", true},
		{"platform, closed hub", Grant{Account: Wildcard, Hubs: one}, "h7", "b", false},
		{"key without account", Grant{Hub: "h1", Hubs: all}, "h1", "a", false},
		{"key without account, no account", Grant{Hub: "h1", Hubs: all}, "h1", "", true},
		{"no hubs", Grant{Account: "a"}, "h1", "a", false},
		{"account named *", Grant{Account: "a", Hubs: all}, "h1", Wildcard, false},
	} {
		if got := tt.g.Allows(tt.hub, tt.account); got != tt.want {
			t.Errorf("%s: Allows(%q, %q) = %v", tt.name, tt.hub, tt.account, got)
		}
	}
}

func TestKey_Requirements(t *testing.T) {
	t.Parallel()
	k := Key{Name: "ops", Hubs: []string{"h1"}, Capabilities: []string{CapabilityPublish}}
	if err := k.RequireCapability(CapabilityPublish); err != nil {
		t.Error(err)
	}
	err := k.RequireCapability(CapabilityMigrate)
	if code(err) != relay.CodePermissions || err.Extra["capability"] != CapabilityMigrate {
		t.Errorf("RequireCapability() = %v, %v", err, err.Extra)
	}
	if got := code(k.RequireHub("h2")); got != relay.CodeWrongHub {
		t.Errorf("RequireHub() = %q, want %q", got, relay.CodeWrongHub)
	}
	if !k.CanReadHub("h1") || k.CanReadHub("") || k.CanReadHub(Wildcard) {
		t.Error("CanReadHub is wrong for a key of one hub")
	}
}

func TestCheckHubID(t *testing.T) {
	t.Parallel()
	for id, want := range map[string]relay.Code{
		"":                       relay.CodeMissingArgument,
		"h":                      "",
		"Hub 1/ü":                "",
		strings.Repeat("x", 256): "",
		strings.Repeat("x", 257): relay.CodeInvalidArgument,
		"a\x00b":                 relay.CodeInvalidArgument,
		"a\nb":                   relay.CodeInvalidArgument,
		"a\x7f":                  relay.CodeInvalidArgument,
		"a\u0085b":               relay.CodeInvalidArgument,
		"a\xff":                  relay.CodeInvalidArgument,
	} {
		if got := code(CheckHubID(id)); got != want {
			t.Errorf("CheckHubID(%.20q) = %q, want %q", id, got, want)
		}
	}
}

func TestSecrets(t *testing.T) {
	t.Parallel()
	a, b := apikey.New(), apikey.New()
	if a == b || !strings.HasPrefix(a, "hrk_") || len(a) != 4+43 {
		t.Errorf("apikey.New() = keys of %d and %d characters, want 47 and different keys", len(a), len(b))
	}
	hash := apikey.HashOf(a)
	if got, want := apikey.FormatHash(hash), fmt.Sprintf("%x", sha256.Sum256([]byte(a))); got != want {
		t.Errorf("FormatHash() = %s, want %s", got, want)
	}
}

func FuzzAuthenticate(f *testing.F) {
	for _, s := range []string{"Bearer a", "Bearer  a\t", "bearer", " Bearer a", "Bearer \xff", ""} {
		f.Add(s)
	}
	r, err := NewKeyring([]Key{{Name: "k", Hash: apikey.HashOf("a")}})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, header string) {
		k, err := authenticate(r, header)
		if (k == nil) == (err == nil) {
			t.Errorf("Authenticate(%q) = %v, %v", header, k, err)
		}
		if k != nil && !slices.Equal(strings.Fields(strings.ToLower(header)), []string{"bearer", "a"}) {
			t.Errorf("Authenticate(%q) found a key", header)
		}
	})
}

// An issuer can create any number of users. Without an account, they share the limits of one owner.
func TestKey_Owner(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		key  Key
		want string
	}{
		{Key{Name: "a", AccountID: "acme"}, "account acme"},
		{Key{Name: "jwt:a", AccountID: "acme", External: true}, "account acme"},
		{Key{Name: "a"}, "key a"},
		{Key{Name: "a", AccountID: Wildcard}, "key a"},
		{Key{Name: "jwt:a", AccountID: Wildcard, External: true}, "key jwt:a"},
		{Key{Name: "jwt:a", External: true}, "credentials without an account"},
		{Key{Name: "jwt:b", External: true}, "credentials without an account"},
	} {
		if got := tt.key.Owner(); got != tt.want {
			t.Errorf("%+v: got %q, want %q", tt.key, got, tt.want)
		}
	}
}
