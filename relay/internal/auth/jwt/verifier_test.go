package jwt

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"

	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/auth"
)

const (
	testIssuer   = "https://issuer.example.com"
	testAudience = "hubrelay"
)

// issuer signs tokens and serves its keys.
type issuer struct {
	*httptest.Server
	keys    atomic.Pointer[jose.JSONWebKeySet]
	fetches atomic.Int32
	down    atomic.Bool
}

func newIssuer(t *testing.T) *issuer {
	t.Helper()
	i := &issuer{}
	i.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		i.fetches.Add(1)
		if i.down.Load() {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		_ = json.NewEncoder(w).Encode(i.keys.Load())
	}))
	t.Cleanup(i.Close)
	return i
}

func newKey(t testing.TB, id string) jose.JSONWebKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return jose.JSONWebKey{Key: key, KeyID: id, Algorithm: "ES256", Use: "sig"}
}

// publish replaces the keys of the issuer.
func (i *issuer) publish(list ...jose.JSONWebKey) {
	set := &jose.JSONWebKeySet{}
	for _, k := range list {
		set.Keys = append(set.Keys, k.Public())
	}
	i.keys.Store(set)
}

func validClaims() map[string]any {
	return map[string]any{
		"iss": testIssuer, "aud": testAudience, "sub": "alice", "exp": time.Now().Add(time.Hour).Unix(),
		"account_id": "acme", "hubs": []string{"hub-1"}, "capabilities": "notifications-publish",
	}
}

func sign(t testing.TB, key any, algorithm jose.SignatureAlgorithm, claims map[string]any) string {
	t.Helper()
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: algorithm, Key: key}, nil)
	if err != nil {
		t.Fatal(err)
	}
	token, err := jwt.Signed(signer).Claims(claims).Serialize()
	if err != nil {
		t.Fatal(err)
	}
	return token
}

func newTestVerifier(keys KeySource) *Verifier {
	return NewVerifier(Options{
		Issuer: testIssuer, Audience: testAudience, Algorithms: []string{"ES256", "RS256"}, Keys: keys,
		AccountClaim: "account_id", HubsClaim: "hubs", CapabilitiesClaim: "capabilities",
		Log: slog.New(slog.DiscardHandler),
	})
}

func verify(v *Verifier, token string) (*auth.Key, relay.Code) {
	key, refused := v.Verify(context.Background(), token, "")
	if refused != nil {
		return nil, refused.Code
	}
	return key, ""
}

func TestVerifier_Claims(t *testing.T) {
	t.Parallel()
	i, key := newIssuer(t), newKey(t, "1")
	i.publish(key)
	v := newTestVerifier(NewRemoteKeys(i.URL))
	for _, tt := range []struct {
		name   string
		change func(claims map[string]any)
		code   relay.Code
	}{
		{"valid", func(map[string]any) {}, ""},
		{"several audiences", func(c map[string]any) { c["aud"] = []string{"other", testAudience} }, ""},
		{"expired within the leeway", func(c map[string]any) { c["exp"] = time.Now().Add(-10 * time.Second).Unix() }, ""},
		{"expired", func(c map[string]any) { c["exp"] = time.Now().Add(-time.Minute).Unix() }, relay.CodeAuthExpired},
		{"after the year 9999", func(c map[string]any) { c["exp"] = int64(253402300800) }, relay.CodeAuthInvalid},
		{"at the end of time", func(c map[string]any) { c["exp"] = int64(1) << 62 }, relay.CodeAuthInvalid},
		{"without expiry", func(c map[string]any) { delete(c, "exp") }, relay.CodeAuthInvalid},
		{
			"not valid yet", func(c map[string]any) { c["nbf"] = time.Now().Add(time.Hour).Unix() },
			relay.CodeAuthInvalid,
		},
		{"another issuer", func(c map[string]any) { c["iss"] = testIssuer + "/" }, relay.CodeAuthInvalid},
		{"without issuer", func(c map[string]any) { delete(c, "iss") }, relay.CodeAuthInvalid},
		{"another audience", func(c map[string]any) { c["aud"] = "other" }, relay.CodeAuthInvalid},
		{"without audience", func(c map[string]any) { delete(c, "aud") }, relay.CodeAuthInvalid},
		{"without subject", func(c map[string]any) { delete(c, "sub") }, relay.CodeAuthInvalid},
		{"subject for a terminal", func(c map[string]any) { c["sub"] = "a\x1b[2J" }, relay.CodeAuthInvalid},
		{"account is a number", func(c map[string]any) { c["account_id"] = 7 }, relay.CodeAuthInvalid},
		{"long account", func(c map[string]any) { c["account_id"] = strings.Repeat("a", 257) }, relay.CodeAuthInvalid},
		{"account for a terminal", func(c map[string]any) { c["account_id"] = "a\x1b[2J" }, relay.CodeAuthInvalid},
		{"hubs is a number", func(c map[string]any) { c["hubs"] = 7 }, relay.CodeAuthInvalid},
		{"a hub is a number", func(c map[string]any) { c["hubs"] = []any{7} }, relay.CodeAuthInvalid},
	} {
		claims := validClaims()
		tt.change(claims)
		got, code := verify(v, sign(t, key, jose.ES256, claims))
		if code != tt.code {
			t.Errorf("%s: got code %q, want %q", tt.name, code, tt.code)
		}
		if got != nil && (got.Name != "jwt:alice" || got.AccountID != "acme" || !got.CanReadHub("hub-1") ||
			got.CanReadHub("hub-2") || !got.HasCapability(auth.CapabilityPublish) || !got.External ||
			got.Expires.IsZero()) {
			t.Errorf("%s: got key %+v", tt.name, got)
		}
	}
	claims := validClaims()
	claims["exp"] = "tomorrow"
	if _, err := v.Verify(t.Context(), sign(t, key, jose.ES256, claims), ""); err == nil ||
		err.Code != relay.CodeAuthInvalid || !strings.Contains(err.Error(), "claims") {
		t.Errorf("expiry that is no number: got %v", err)
	}
	claims = validClaims()
	for _, name := range []string{"account_id", "hubs", "capabilities"} {
		delete(claims, name)
	}
	got, code := verify(v, sign(t, key, jose.ES256, claims))
	if code != "" || got.AccountID != "" || got.CanReadHub("hub-1") || got.HasCapability(auth.CapabilityPublish) {
		t.Errorf("without claims: got key %+v, code %q, want a key without access", got, code)
	}
}

// Tokens with many hubs cannot fill the memory.
func TestVerifier_LimitsCache(t *testing.T) {
	t.Parallel()
	v := NewVerifier(Options{})
	large := &auth.Key{Hubs: slices.Repeat([]string{"hub-0123456789"}, 1000)}
	for i := range 2 * maxCachedBytes / large.MemoryBytes() {
		hash := sha256.Sum256([]byte{byte(i), byte(i >> 8)})
		v.rememberKey(hash, cachedKey{key: large})
		v.rememberKey(hash, cachedKey{key: large}) // verified again
		if v.bytes > maxCachedBytes || v.bytes != len(v.cache)*large.MemoryBytes() {
			t.Fatalf("got %d bytes of %d tokens, want at most %d", v.bytes, len(v.cache), maxCachedBytes)
		}
	}
}

// Attackers try to choose the algorithm, or to sign with a key that the issuer has not published.
func TestVerifier_Forgeries(t *testing.T) {
	t.Parallel()
	i, key := newIssuer(t), newKey(t, "1")
	i.publish(key)
	v := newTestVerifier(NewRemoteKeys(i.URL))
	encode := func(v any) string {
		text, _ := json.Marshal(v)
		return base64.RawURLEncoding.EncodeToString(text)
	}
	unsigned := encode(map[string]string{"alg": "none", "kid": "1"}) + "." + encode(validClaims()) + "."
	public, err := key.Public().MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	valid := sign(t, key, jose.ES256, validClaims())
	other := newKey(t, "1")
	unnamed := newKey(t, "")
	embedded, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: other},
		&jose.SignerOptions{EmbedJWK: true})
	if err != nil {
		t.Fatal(err)
	}
	withKey, err := jwt.Signed(embedded).Claims(validClaims()).Serialize()
	if err != nil {
		t.Fatal(err)
	}
	for name, token := range map[string]string{
		"without signature": unsigned,
		"public key as shared secret": sign(t, jose.JSONWebKey{Key: public, KeyID: "1"}, jose.HS256,
			validClaims()),
		"another key with this ID":          sign(t, other, jose.ES256, validClaims()),
		"another key without ID":            sign(t, unnamed, jose.ES256, validClaims()),
		"key in the token":                  withKey,
		"changed signature":                 valid[:len(valid)-4] + "AAAA",
		"changed claims":                    valid[:40] + "A" + valid[41:],
		"not a token":                       "a.b.c",
		"longer than the limit":             valid + string(make([]byte, maxToken)),
		"algorithm that is not in the list": sign(t, newP384(t), jose.ES384, validClaims()),
	} {
		if got, code := verify(v, token); code != relay.CodeAuthInvalid {
			t.Errorf("%s: got key %+v, code %q, want %s", name, got, code, relay.CodeAuthInvalid)
		}
	}
}

func newP384(t *testing.T) crypto.Signer {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func TestRemoteKeys_Rotation(t *testing.T) {
	t.Parallel()
	i, first, second := newIssuer(t), newKey(t, "1"), newKey(t, "2")
	i.publish(first)
	keys := NewRemoteKeys(i.URL)
	keys.maxStaleWait = time.Minute
	now := time.Now()
	keys.now = func() time.Time { return now }
	v := newTestVerifier(keys)
	v.now = keys.now
	check := func(name string, key jose.JSONWebKey, want relay.Code, fetches int32) {
		t.Helper()
		claims := validClaims()
		claims["exp"] = now.Add(48 * time.Hour).Unix()
		claims["jti"] = name // so that no cached decision is used
		if _, code := verify(v, sign(t, key, jose.ES256, claims)); code != want {
			t.Errorf("%s: got code %q, want %q", name, code, want)
		}
		if n := i.fetches.Load(); n != fetches {
			t.Errorf("%s: got %d fetches, want %d", name, n, fetches)
		}
	}
	check("first", first, "", 1)
	check("first again", first, "", 1)
	check("unknown key soon", second, relay.CodeAuthInvalid, 1)
	now = now.Add(minFetchInterval)
	check("unknown key later", second, relay.CodeAuthInvalid, 2)
	i.publish(second)
	now = now.Add(minFetchInterval)
	check("new key", second, "", 3)
	check("withdrawn key", first, relay.CodeAuthInvalid, 3)
	i.down.Store(true)
	now = now.Add(minFetchInterval)
	check("unknown key during an outage", first, relay.CodeAuthUnavailable, 4)
	check("known key during an outage", second, "", 4)
	now = now.Add(maxKeyAge)
	check("known key after a long outage", second, relay.CodeAuthUnavailable, 5)
	i.down.Store(false)
	now = now.Add(minFetchInterval)
	check("after the outage", second, "", 6)
	i.publish(first)
	i.down.Store(true)
	now = now.Add(maxKeyAge / 2)
	check("old key during an outage", second, "", 7)
	i.down.Store(false)
	now = now.Add(minFetchInterval)
	check("key that was withdrawn long ago", second, relay.CodeAuthInvalid, 8)
}

// A key that cannot be used, such as one with a huge modulus or of an unknown type, does not disable the others.
func TestParseKeySet_IgnoresUnusableKeys(t *testing.T) {
	t.Parallel()
	private := newKey(t, "1")
	key := private.Public()
	good, err := json.Marshal(key)
	if err != nil {
		t.Fatal(err)
	}
	huge := base64.RawURLEncoding.EncodeToString(bytes.Repeat([]byte{0xff}, 90_000))
	set, err := parseKeySet([]byte(`{"keys":[{"kty":"RSA","kid":"2","e":"AQAB","n":"` + huge + `"},{"kty":"new"},7,` + string(good) + `]}`))
	if err != nil || len(set.Keys) != 1 || set.Keys[0].KeyID != "1" {
		t.Errorf("got %v, %v, want the usable key", set, err)
	}
}

func TestRemoteKeys_NeverReached(t *testing.T) {
	t.Parallel()
	i, key := newIssuer(t), newKey(t, "1")
	redirect := httptest.NewServer(http.RedirectHandler(i.URL, http.StatusFound))
	t.Cleanup(redirect.Close)
	html := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte("<html>"))
	}))
	t.Cleanup(html.Close)
	i.publish(key)
	closed := httptest.NewServer(http.NotFoundHandler())
	closed.Close()
	many := newIssuer(t)
	many.publish(slices.Repeat([]jose.JSONWebKey{key}, maxKeys+1)...)
	for name, url := range map[string]string{
		"closed": closed.URL, "redirect": redirect.URL, "no JWKS": html.URL, "too many keys": many.URL,
	} {
		if _, code := verify(newTestVerifier(NewRemoteKeys(url)), sign(t, key, jose.ES256, validClaims())); code !=
			relay.CodeAuthUnavailable {
			t.Errorf("%s: got code %q, want %s", name, code, relay.CodeAuthUnavailable)
		}
	}
}

func TestFileKeys_Rotation(t *testing.T) {
	t.Parallel()
	i, first, second := newIssuer(t), newKey(t, "1"), newKey(t, "2")
	name := filepath.Join(t.TempDir(), "jwks.json")
	write := func(text []byte) {
		t.Helper()
		if err := os.WriteFile(name+"~", text, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(name+"~", name); err != nil {
			t.Fatal(err)
		}
	}
	publish := func(key jose.JSONWebKey) {
		t.Helper()
		i.publish(key)
		text, err := json.Marshal(i.keys.Load())
		if err != nil {
			t.Fatal(err)
		}
		write(text)
	}
	publish(first)
	now := time.Now()
	keys, err := NewFileKeys(name, testkit.Log(t), func() time.Time { return now })
	if err != nil {
		t.Fatal(err)
	}
	v := newTestVerifier(keys)
	check := func(step string, key jose.JSONWebKey, want relay.Code) {
		t.Helper()
		now = now.Add(time.Second)
		claims := validClaims()
		claims["jti"] = step
		if _, code := verify(v, sign(t, key, jose.ES256, claims)); code != want {
			t.Errorf("%s: got code %q, want %q", step, code, want)
		}
	}
	check("first", first, "")
	publish(second)
	check("new key", second, "")
	check("removed key", first, relay.CodeAuthInvalid)
	write([]byte("{"))
	check("invalid file", second, "")
	if _, err := NewFileKeys(name, testkit.Log(t), time.Now); err == nil {
		t.Error("an invalid file was accepted at the start")
	}
}

func BenchmarkVerify_Cached(b *testing.B) {
	key := newKey(b, "1")
	text, err := json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{key.Public()}})
	if err != nil {
		b.Fatal(err)
	}
	name := filepath.Join(b.TempDir(), "jwks.json")
	if err := os.WriteFile(name, text, 0o600); err != nil {
		b.Fatal(err)
	}
	keys, err := NewFileKeys(name, testkit.Log(b), time.Now)
	if err != nil {
		b.Fatal(err)
	}
	v := newTestVerifier(keys)
	token := sign(b, key, jose.ES256, validClaims())
	for b.Loop() {
		if _, code := verify(v, token); code != "" {
			b.Fatal(code)
		}
	}
}

// An endpoint may repeat the request in its response.
func TestRemoteKeys_ErrorHidesURL(t *testing.T) {
	t.Parallel()
	for _, response := range []string{"HTTP/1.1 403 %s\r\nContent-Length: 0\r\n\r\n", "HTTP/1.1 200 OK\r\n%s\r\n\r\n"} {
		i := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			conn, _, err := http.NewResponseController(w).Hijack()
			if err == nil {
				_, _ = fmt.Fprintf(conn, response, r.RequestURI+" "+r.Header.Get("Authorization"))
				_ = conn.Close()
			}
		}))
		keys := NewRemoteKeys(strings.Replace(i.URL, "://", "://user:s3cret-password@", 1) + "/s3cret-path?k=s3cret-value")
		_, err := keys.Find(t.Context(), "x")
		i.Close()
		if secret := base64.StdEncoding.EncodeToString([]byte("user:s3cret-password")); err == nil ||
			strings.Contains(err.Error(), "s3cret") || strings.Contains(err.Error(), secret) {
			t.Errorf("%s: got %v", response, err)
		}
	}
}
