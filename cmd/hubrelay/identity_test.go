package main_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"github.com/gorilla/websocket"

	"github.com/hubrelay/hubrelay/internal/testkit"
)

// TestIdentity_JWT publishes and listens with JWTs. A stream ends when its JWT expires.
func TestIdentity_JWT(t *testing.T) {
	t.Parallel()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	down := false
	jwks := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		if down {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		_ = json.NewEncoder(w).Encode(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: key.Public(), KeyID: "1"}}})
	}))
	defer jwks.Close()
	d := serve(t, daemonConfig{
		redis: `url: "memory:"`,
		auth:  fmt.Sprintf(`jwt: {issuer: issuer, audience: hubrelay, jwks_url: %q}`, jwks.URL),
	})
	sign := func(keyID string, hubs string, expires time.Time) string {
		t.Helper()
		signer, err := jose.NewSigner(jose.SigningKey{
			Algorithm: jose.ES256,
			Key:       jose.JSONWebKey{Key: key, KeyID: keyID},
		},
			nil)
		if err != nil {
			t.Fatal(err)
		}
		token, err := jwt.Signed(signer).Claims(map[string]any{
			"iss": "issuer", "aud": "hubrelay", "sub": "alice", "exp": expires.Unix(), "account_id": "acme",
			"hubs":         hubs,
			"capabilities": []string{"notifications-publish"},
		}).Serialize()
		if err != nil {
			t.Fatal(err)
		}
		return token
	}
	post := testkit.Request{Method: "POST", Hub: "hub-1", ContentType: "application/json", Body: plain}
	publish := func(key, hub string) testkit.Reply {
		t.Helper()
		r := post
		r.Key, r.Hub = key, hub
		return d.Do(t, r)
	}
	// The leeway for the clocks of issuer and relay is 30 s, so the stream may stay open for 20 s.
	short := d.connect(t, sign("1", "hub-1", time.Now().Add(-10*time.Second)), "hub-1", "")
	valid := sign("1", "hub-1", time.Now().Add(time.Hour))
	ws := d.connect(t, valid, "hub-1", "")
	if r := publish(valid, "hub-1"); r.Status != http.StatusAccepted {
		t.Fatalf("publish was answered %d %s", r.Status, r.Body)
	}
	if frame := ws.wait(t, 1)[0]; !strings.Contains(frame, `"account_id":"acme"`) {
		t.Errorf("the account of the JWT is missing in %s", frame)
	}
	wantError(t, publish(valid, "hub-2"), "403.wrong-hub", "", "hub-2")
	wantError(t, publish(sign("1", "*", time.Now().Add(-time.Hour)), "hub-1"), "401.auth-expired", "", "expired")
	wantError(t, publish(valid[:len(valid)-6]+"AAAAAA", "hub-1"), "401.auth-invalid", "", "signed")
	if closed := short.closed(t, websocket.ClosePolicyViolation); !strings.Contains(closed.Text, "expired") {
		t.Errorf("the stream ended with %q, want an expiry", closed.Text)
	}
	if r := publish(opsKey, "hub-1"); r.Status != http.StatusAccepted {
		t.Errorf("publish with a static key was answered %d %s", r.Status, r.Body)
	}
	mu.Lock()
	down = true
	mu.Unlock()
	testkit.Eventually(t, "the unreachable JWKS to be reported", func() error {
		r := publish(sign("2", "hub-1", time.Now().Add(time.Hour)), "hub-1")
		if !strings.Contains(r.Body, "503.auth-unavailable") {
			return fmt.Errorf("%d %s", r.Status, r.Body)
		}
		return nil
	})
	if r := publish(valid, "hub-1"); r.Status != http.StatusAccepted {
		t.Errorf("publish with a known key was answered %d %s", r.Status, r.Body)
	}
}

// TestIdentity_Forward asks an endpoint. A notification that a key has changed ends its streams within a second.
func TestIdentity_Forward(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	status := http.StatusOK
	answer := func(code int) {
		mu.Lock()
		defer mu.Unlock()
		status = code
	}
	endpoint := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		var question map[string]string
		_ = json.NewDecoder(r.Body).Decode(&question)
		if question["credential"] != "platform-key-1" || status != http.StatusOK {
			w.WriteHeader(max(status, http.StatusUnauthorized))
			return
		}
		_, _ = fmt.Fprintf(w, `{"name":"k1","account_id":"acme","hubs":[%q]}`, question["hub_id"])
	}))
	defer endpoint.Close()
	d := serve(t, daemonConfig{
		redis: `url: "memory:"`, auth: fmt.Sprintf(`forward: {url: %q, timeout: 30s, cache_ttl: 1h}`, endpoint.URL),
	})
	get := func(key string) testkit.Reply {
		t.Helper()
		return d.Do(t, testkit.Request{Method: "GET", Hub: "hub-1", Key: key})
	}
	ws, other := d.connect(t, "platform-key-1", "hub-1", ""), d.connect(t, "platform-key-1", "hub-2", "")
	wantError(t, get("platform-key-2"), "401.auth-invalid", "", "not known")
	answer(http.StatusUnauthorized)
	if r := get("platform-key-1"); r.Status != http.StatusOK {
		t.Errorf("a cached decision was answered %d %s", r.Status, r.Body)
	}
	d.Publish(t, "hub-1", "application/json",
		`{"topic":"hub.api_key.state.changed","object":{"id":"k1","state":"deleted"}}`, nil)
	if closed := ws.closed(t, websocket.ClosePolicyViolation); !strings.Contains(closed.Text, "no longer opens") {
		t.Errorf("the stream of the changed key ended with %q", closed.Text)
	}
	wantError(t, get("platform-key-1"), "401.auth-invalid", "", "not known")
	d.Publish(t, "hub-2", "application/json", `{"topic":"job.created","context":{"account_id":"acme"}}`, nil)
	other.wait(t, 1)
	answer(http.StatusInternalServerError)
	wantError(t, get("platform-key-1"), "503.auth-unavailable", "", "no valid response")
}

// TestIdentity_MTLS authenticates with client certificates.
func TestIdentity_MTLS(t *testing.T) {
	t.Parallel()
	dir := tempDir(t)
	ca, strangerCA := newTestCA(t), newTestCA(t)
	server := ca.issue(t, &x509.Certificate{DNSNames: []string{"localhost"}})
	writeFile(t, dir, "ca.pem", string(ca.pem))
	writeFile(t, dir, "cert.pem", string(server.certPEM))
	writeFile(t, dir, "key.pem", string(server.keyPEM))
	c := daemonConfig{
		redis: `url: "memory:"`, server: `, tls: {cert_file: cert.pem, key_file: key.pem}`,
		auth: `mtls: {ca_file: ca.pem}`,
		keys: `    - {name: worker, san: "spiffe://example.com/worker", account_id: acme, hubs: [hub-1],
       capabilities: [notifications-publish]}`,
	}
	d := serveFile(t, writeFile(t, dir, "hubrelay.yaml", c.renderYAML()))
	do := func(certificate *tls.Certificate) (int, error) {
		t.Helper()
		config := &tls.Config{RootCAs: x509.NewCertPool(), ServerName: "localhost"}
		config.RootCAs.AppendCertsFromPEM(ca.pem)
		if certificate != nil {
			config.Certificates = []tls.Certificate{*certificate}
		}
		transport := &http.Transport{TLSClientConfig: config}
		defer transport.CloseIdleConnections()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://"+d.Public+notificationsPath,
			strings.NewReader(plain))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("X-Hub-Id", "hub-1")
		res, err := (&http.Client{Transport: transport}).Do(req)
		if err != nil {
			return 0, err
		}
		return res.StatusCode, res.Body.Close()
	}
	worker := x509.Certificate{URIs: []*url.URL{{Scheme: "spiffe", Host: "example.com", Path: "/worker"}}}
	for _, tt := range []struct {
		name        string
		certificate *tls.Certificate
		status      int
	}{
		{"known name", ca.issue(t, &worker).certificate, http.StatusAccepted},
		{
			"other name", ca.issue(t, &x509.Certificate{DNSNames: []string{"worker"}}).certificate,
			http.StatusUnauthorized,
		},
		{"no certificate", nil, http.StatusUnauthorized},
		{"other CA", strangerCA.issue(t, &worker).certificate, 0},
	} {
		status, err := do(tt.certificate)
		if status != tt.status || (err != nil) != (tt.status == 0) {
			t.Errorf("%s: got status %d, error %v, want %d", tt.name, status, err, tt.status)
		}
	}
	out, errOut, code := call(t, nil, "", "config", "check", "-c",
		writeFile(t, dir, "plain.yaml", strings.Replace(c.renderYAML(), c.server, "", 1)))
	if code == 0 || !strings.Contains(errOut+out, "has no effect without TLS") {
		t.Errorf("mtls without tls: %d %s %s", code, out, errOut)
	}
}

// testCA issues certificates.
type testCA struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
	pem         []byte
}

func newTestCA(t *testing.T) *testCA {
	t.Helper()
	ca := &testCA{certificate: &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, NotAfter: time.Now().Add(time.Hour),
		IsCA:                  true,
		BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}}
	issued := ca.issue(t, ca.certificate)
	ca.pem = issued.certPEM
	var err error
	if ca.certificate, err = x509.ParseCertificate(issued.certificate.Certificate[0]); err != nil {
		t.Fatal(err)
	}
	return ca
}

type issuedCertificate struct {
	certificate     *tls.Certificate
	certPEM, keyPEM []byte
}

// issue signs a certificate. The first one signs itself.
func (ca *testCA) issue(t *testing.T, template *x509.Certificate) issuedCertificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	if ca.key == nil {
		ca.key = key
	}
	signed := *template
	signed.SerialNumber, signed.NotAfter = big.NewInt(time.Now().UnixNano()), time.Now().Add(time.Hour)
	signed.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth}
	der, err := x509.CreateCertificate(rand.Reader, &signed, ca.certificate, key.Public(), ca.key)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	certPEM := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	keyPEM := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER})
	pair, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		t.Fatal(err)
	}
	return issuedCertificate{&pair, certPEM, keyPEM}
}
