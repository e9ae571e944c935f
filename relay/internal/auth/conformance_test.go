package auth_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-jose/go-jose/v4"
	josejwt "github.com/go-jose/go-jose/v4/jwt"

	"github.com/hubrelay/hubrelay/internal/apikey"
	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/auth"
	"github.com/hubrelay/hubrelay/relay/internal/auth/forward"
	"github.com/hubrelay/hubrelay/relay/internal/auth/jwt"
)

// bearer describes who presents a credential.
type bearer struct {
	account      string
	hubs         []string
	capabilities []string
	expires      time.Time
}

// method is a way to authenticate. issue returns what a bearer presents.
type method struct {
	name  string
	issue func(t *testing.T, b bearer) auth.Request
	// forged is a request with a credential that was never issued.
	forged auth.Request
}

func withBearer(credential string) auth.Request {
	return auth.Request{Authorization: []string{"Bearer " + credential}, Hub: "hub-1"}
}

func withCertificate(name string) auth.Request {
	return auth.Request{Certificate: &x509.Certificate{URIs: []*url.URL{{Scheme: "spiffe", Host: name}}}}
}

// newMethods returns an authenticator with all methods side by side.
func newMethods(t *testing.T) (*auth.Authenticator, []method) {
	t.Helper()
	keyring, err := auth.NewKeyring(nil)
	if err != nil {
		t.Fatal(err)
	}
	var keys []auth.Key
	add := func(t *testing.T, k auth.Key, b bearer) {
		t.Helper()
		k.AccountID, k.Hubs, k.Capabilities, k.Expires = b.account, b.hubs, b.capabilities, b.expires
		keys = append(keys, k)
		if err := keyring.Replace(keys); err != nil {
			t.Fatal(err)
		}
	}
	signer, verifier := newJWT(t)
	endpoint, known := newForward(t)
	methods := []method{
		{"key", func(t *testing.T, b bearer) auth.Request {
			secret := apikey.New()
			add(t, auth.Key{Name: secret[:10], Hash: apikey.HashOf(secret)}, b)
			return withBearer(secret)
		}, withBearer("hrk_guess")},
		{"certificate", func(t *testing.T, b bearer) auth.Request {
			name := apikey.New()[4:]
			san := "spiffe://" + name
			add(t, auth.Key{Name: name, SAN: san, Hash: auth.HashOfSAN(san)}, b)
			return withCertificate(name)
		}, withCertificate("guess")},
		{"jwt", func(t *testing.T, b bearer) auth.Request {
			token, err := josejwt.Signed(signer).Claims(map[string]any{
				"iss": "issuer", "aud": "hubrelay", "sub": rand.Text(), "exp": b.expires.Unix(),
				"account_id": b.account,
				"hubs":       b.hubs, "capabilities": b.capabilities,
			}).Serialize()
			if err != nil {
				t.Fatal(err)
			}
			return withBearer(token)
		}, withBearer("e30.e30.e30")},
		{"forward", func(_ *testing.T, b bearer) auth.Request {
			credential := rand.Text()
			known[credential] = b
			return withBearer(credential)
		}, withBearer("guess")},
	}
	return auth.NewAuthenticator(auth.AuthenticatorOptions{Keys: keyring, JWT: verifier, Forward: endpoint}), methods
}

func newJWT(t *testing.T) (jose.Signer, *jwt.Verifier) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: key.Public()}}})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "jwks.json")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	keys, err := jwt.NewFileKeys(file, testkit.Log(t), time.Now)
	if err != nil {
		t.Fatal(err)
	}
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: key}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return signer, jwt.NewVerifier(jwt.Options{
		Issuer: "issuer", Audience: "hubrelay", Algorithms: []string{"ES256"}, Keys: keys, AccountClaim: "account_id",
		HubsClaim: "hubs", CapabilitiesClaim: "capabilities", Log: testkit.Log(t),
	})
}

func newForward(t *testing.T) (*forward.Verifier, map[string]bearer) {
	t.Helper()
	known := make(map[string]bearer)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var question map[string]string
		_ = json.NewDecoder(r.Body).Decode(&question)
		b, ok := known[question["credential"]]
		if !ok {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		_ = json.NewEncoder(w).Encode(map[string]any{
			"name": "n", "account_id": b.account, "hubs": b.hubs, "capabilities": b.capabilities, "expires": b.expires,
		})
	}))
	t.Cleanup(s.Close)
	return forward.NewVerifier(forward.Options{
		URL: s.URL, Timeout: 5 * time.Second, CacheTTL: time.Minute, StaleTTL: time.Minute,
		IsThrottled: auth.NewFailureThrottle().IsThrottled, Log: testkit.Log(t),
	}), known
}

// TestMethods is the conformance suite of all ways to authenticate. They are configured side by side.
func TestMethods(t *testing.T) {
	t.Parallel()
	a, methods := newMethods(t)
	code := func(refused *relay.Error) relay.Code {
		if refused == nil {
			return ""
		}
		return refused.Code
	}
	for _, m := range methods {
		t.Run(m.name, func(t *testing.T) {
			narrow := m.issue(t, bearer{
				"acme", []string{"hub-1"}, []string{auth.CapabilityPublish}, time.Now().Add(10 * time.Minute),
			})
			key, refused := a.Authenticate(t.Context(), narrow)
			if refused != nil {
				t.Fatal(refused)
			}
			if key.AccountID != "acme" || !key.CanReadHub("hub-1") || key.CanReadHub("hub-2") ||
				!key.HasCapability(auth.CapabilityPublish) || key.HasCapability(auth.CapabilityMigrate) ||
				key.Name == "" {
				t.Errorf("got key %+v", key)
			}
			grant := key.Grant("hub-1")
			if current, refused := a.CurrentGrant(grant); refused != nil || !current.SameVisibility(&grant) {
				t.Errorf("CurrentGrant() = %+v, %v", current, refused)
			}
			if until := time.Until(grant.Expires); until < 9*time.Minute || until > 11*time.Minute {
				t.Errorf("the grant expires in %s, want 10 minutes", until)
			}
			grant.Expires = time.Now().Add(-time.Second)
			if _, refused := a.CurrentGrant(grant); key.External && code(refused) != relay.CodeAuthExpired {
				t.Errorf("an expired grant: got error %v, want %s", refused, relay.CodeAuthExpired)
			}

			powerless := m.issue(t, bearer{expires: time.Now().Add(time.Minute)})
			key, refused = a.Authenticate(t.Context(), powerless)
			if refused != nil || key.CanReadHub("hub-1") || key.HasCapability(auth.CapabilityPublish) ||
				key.AccountID != "" {
				t.Errorf("a credential without rights: got %+v, %v", key, refused)
			}

			expired := m.issue(t, bearer{"acme", []string{"hub-1"}, nil, time.Now().Add(-2 * time.Minute)})
			if _, refused := a.Authenticate(t.Context(), expired); code(refused) != relay.CodeAuthExpired {
				t.Errorf("an expired credential: got error %v, want %s", refused, relay.CodeAuthExpired)
			}
			if _, refused := a.Authenticate(t.Context(), m.forged); code(refused) != relay.CodeAuthInvalid {
				t.Errorf("a forged credential: got error %v, want %s", refused, relay.CodeAuthInvalid)
			}
			twice := narrow
			twice.Authorization = []string{"Bearer a", "Bearer b"}
			if _, refused := a.Authenticate(t.Context(), twice); code(refused) != relay.CodeAuthInvalid {
				t.Errorf("two credentials: got error %v, want %s", refused, relay.CodeAuthInvalid)
			}
		})
	}
}

// The name of a certificate is no secret.
func TestAuthenticate_NameOfCertificateAsSecret(t *testing.T) {
	t.Parallel()
	keyring, err := auth.NewKeyring([]auth.Key{{Name: "c", SAN: "client", Hash: auth.HashOfSAN("client")}})
	if err != nil {
		t.Fatal(err)
	}
	a := auth.NewAuthenticator(auth.AuthenticatorOptions{Keys: keyring})
	for _, secret := range []string{"client", "\x00san\x00client"} {
		if k, refused := a.Authenticate(t.Context(), withBearer(secret)); refused == nil {
			t.Errorf("%q authenticates as %q", secret, k.Name)
		}
	}
	certificate := auth.Request{Certificate: &x509.Certificate{DNSNames: []string{"client"}}}
	if _, refused := a.Authenticate(t.Context(), certificate); refused != nil {
		t.Error(refused)
	}
	certificate.Authorization = []string{"Bearer guess"}
	if _, refused := a.Authenticate(t.Context(), certificate); refused == nil {
		t.Error("a wrong secret must not fall back to the certificate")
	}
}

// A connection may last longer than its certificate, but neither requests nor tokens nor streams do.
func TestAuthenticate_CertificateExpires(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for name, keyExpires := range map[string]time.Duration{"key without an expiry": 0, "key": time.Hour, "shorter key": 30 * time.Second} {
			key := auth.Key{Name: "c", SAN: "client", Hash: auth.HashOfSAN("client"), Hubs: []string{"h"}}
			want := time.Minute
			if keyExpires > 0 {
				key.Expires, want = time.Now().Add(keyExpires), min(want, keyExpires)
			}
			keyring, err := auth.NewKeyring([]auth.Key{key})
			if err != nil {
				t.Fatal(err)
			}
			a := auth.NewAuthenticator(auth.AuthenticatorOptions{Keys: keyring})
			request := auth.Request{
				Certificate: &x509.Certificate{DNSNames: []string{"client"}}, CertificateExpires: time.Now().Add(time.Minute),
			}
			k, refused := a.Authenticate(t.Context(), request)
			if refused != nil {
				t.Fatal(refused)
			}
			opened := k.Grant("h")
			if got := time.Until(opened.Expires); got != want {
				t.Errorf("%s: the token is valid for %s, want %s", name, got, want)
			}
			if current, refused := a.CurrentGrant(opened); refused != nil || !current.Expires.Equal(opened.Expires) {
				t.Errorf("%s: the stream expires at %s (%v), want %s", name, current.Expires, refused, opened.Expires)
			}
			time.Sleep(want)
			if _, refused := a.Authenticate(t.Context(), request); refused == nil || refused.Code != relay.CodeAuthExpired {
				t.Errorf("%s: a request after the expiry got %v", name, refused)
			}
			if _, refused := a.CurrentGrant(opened); refused == nil || refused.Code != relay.CodeAuthExpired {
				t.Errorf("%s: a stream after the expiry got %v", name, refused)
			}
		}
	})
}

// A name in a certificate matches only keys with a name of the same kind.
func TestAuthenticate_KindsOfNames(t *testing.T) {
	t.Parallel()
	newKey := func(san string) auth.Key { return auth.Key{Name: "of " + san, SAN: san, Hash: auth.HashOfSAN(san)} }
	keyring, err := auth.NewKeyring([]auth.Key{newKey("spiffe://a/b"), newKey("client"), newKey("a@example.com")})
	if err != nil {
		t.Fatal(err)
	}
	a := auth.NewAuthenticator(auth.AuthenticatorOptions{Keys: keyring})
	for _, tt := range []struct {
		certificate x509.Certificate
		allowed     bool
	}{
		{x509.Certificate{DNSNames: []string{"client"}}, true},
		{x509.Certificate{EmailAddresses: []string{"a@example.com"}}, true},
		{x509.Certificate{URIs: []*url.URL{{Scheme: "spiffe", Host: "a", Path: "/b"}}}, true},
		{x509.Certificate{DNSNames: []string{"spiffe://a/b"}}, false},
		{x509.Certificate{EmailAddresses: []string{"spiffe://a/b"}}, false},
		{x509.Certificate{DNSNames: []string{"a@example.com"}}, false},
		{x509.Certificate{URIs: []*url.URL{{Path: "client"}}}, false},
	} {
		c := &tt.certificate
		if _, refused := a.Authenticate(t.Context(), auth.Request{Certificate: c}); (refused == nil) != tt.allowed {
			t.Errorf("%v %v %v: got error %v, want allowed %t", c.DNSNames, c.EmailAddresses, c.URIs, refused, tt.allowed)
		}
	}
}

func TestAuthenticate_Networks(t *testing.T) {
	t.Parallel()
	keyring, err := auth.NewKeyring([]auth.Key{{
		Name: "c", Hash: apikey.HashOf("secret"), Networks: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")},
	}})
	if err != nil {
		t.Fatal(err)
	}
	a := auth.NewAuthenticator(auth.AuthenticatorOptions{Keys: keyring})
	for text, allowed := range map[string]bool{
		"10.1.2.3": true, "::ffff:10.1.2.3": true, "192.0.2.1": false, "::1": false, "": false,
	} {
		request := withBearer("secret")
		request.Address, _ = netip.ParseAddr(text)
		if _, refused := a.Authenticate(t.Context(), request); (refused == nil) != allowed {
			t.Errorf("from %q: got error %v, want allowed %t", text, refused, allowed)
		}
	}
}
