package main_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"github.com/hubrelay/hubrelay/internal/testkit"
)

func TestTokens(t *testing.T) {
	t.Parallel()
	d := serve(t, daemonConfig{redis: `url: "memory:"`, server: `, allowed_origins: ["https://console.example.com"]`})

	t.Run("opens one websocket", func(t *testing.T) {
		query := "?token=" + d.Token(t, opsKey, "hub-1")
		if ws, refused := d.upgrade(t, query, nil); ws == nil {
			t.Fatalf("the first upgrade was answered %d %s", refused.Status, refused.Body)
		}
		_, refused := d.upgrade(t, query, nil)
		wantError(t, refused, "401.auth-invalid", "", "used already")
	})
	t.Run("white space in it is ignored", func(t *testing.T) {
		token := d.Token(t, opsKey, "hub-1")
		half := len(token) / 2
		if ws, refused := d.upgrade(t, "?token=%20"+token[:half]+"%0D%0A%20"+token[half:]+"%20", nil); ws == nil {
			t.Fatalf("answered %d %s", refused.Status, refused.Body)
		}
	})
	t.Run("in the header, with all that the specification's example sends", func(t *testing.T) {
		header := http.Header{
			"x-service-token": {d.Token(t, readerKey, "hub-1")}, "Authorization": {"Bearer " + readerKey},
			"X-Hub-Id": {"hub-1"}, "Origin": {"http://" + d.Public},
		}
		if ws, refused := d.upgrade(t, "", header); ws == nil {
			t.Fatalf("answered %d %s", refused.Status, refused.Body)
		}
	})
	t.Run("the answer is exactly the token, and the Link is ready-made", func(t *testing.T) {
		r := d.Do(t, testkit.Request{Method: "GET", Key: opsKey, Hub: "hub-1"})
		var token string
		if _, err := fmt.Sscanf(r.Body, `{"data":{"token":%q}}`, &token); err != nil {
			t.Fatalf("answered %s: %v", r.Body, err)
		}
		if want := `{"data":{"token":"` + token + `"}}`; strings.TrimSpace(r.Body) != want {
			t.Errorf("answered %s, want %s", r.Body, want)
		}
		want := "<ws://" + d.Public + notificationsPath + "?token=" + token + `>; rel="notifications"`
		if got := r.Header.Get("Link"); got != want {
			t.Fatalf("Link is %s, want %s", got, want)
		}
		conn, _, err := websocket.DefaultDialer.Dial(want[1:strings.Index(want, ">")], nil)
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.Close()
	})
	for name, tc := range map[string]struct {
		key, hub string
		query    string
		header   http.Header
		code     string
	}{
		"none":     {query: "?topics=*", code: "401.auth-invalid"},
		"invented": {query: "?token=0123456789", code: "401.auth-invalid"},
		"with another hub": {
			key: opsKey, hub: "hub-1", header: http.Header{"X-Hub-Id": {"hub-2"}},
			code: "403.wrong-hub",
		},
		"with a key of no such": {
			key: opsKey, hub: "hub-1",
			header: http.Header{"Authorization": {"Bearer nonsense-nonsense"}}, code: "401.auth-invalid",
		},
		"with a key of other hubs": {
			key: opsKey, hub: "hub-9",
			header: http.Header{"Authorization": {"Bearer " + readerKey}}, code: "403.wrong-hub",
		},
		"from a foreign page": {
			key: opsKey, hub: "hub-1",
			header: http.Header{"Origin": {"https://evil.example.com"}}, code: "403.permissions",
		},
		"from a similar page": {
			key: opsKey, hub: "hub-1",
			header: http.Header{"Origin": {"http://console.example.com"}}, code: "403.permissions",
		},
		"from a file": {
			key: opsKey, hub: "hub-1", header: http.Header{"Origin": {"null"}},
			code: "403.permissions",
		},
		"with a bad pattern": {
			key: opsKey, hub: "hub-1", query: "&topics=contaner.*",
			code: "422.invalid-argument",
		},
	} {
		t.Run("is refused: "+name, func(t *testing.T) {
			query, token := tc.query, ""
			if tc.key != "" {
				token = d.Token(t, tc.key, tc.hub)
				query = "?token=" + token + tc.query
			}
			_, refused := d.upgrade(t, query, tc.header)
			wantError(t, refused, tc.code, "", "")
			if token == "" {
				return
			}
			// The rejected requests have not consumed the token.
			if ws, refused := d.upgrade(t, "?token="+token,
				http.Header{"Origin": {"https://console.example.com"}}); ws == nil {
				t.Errorf("the token was used up by a refusal: %d %s", refused.Status, refused.Body)
			}
		})
	}
	t.Run("without an upgrade", func(t *testing.T) {
		token := d.Token(t, opsKey, "hub-1")
		wantError(t, d.Do(t, testkit.Request{Method: "GET", Path: notificationsPath + "?token=" + token}),
			"426.upgrade-required", "", "Upgrade")
		wantError(t, d.Do(t, testkit.Request{Method: "GET", Header: map[string]string{"X-Service-Token": token}}),
			"426.upgrade-required", "", "")
		if ws, refused := d.upgrade(t, "?token="+token, nil); ws == nil {
			t.Errorf("the token was used up: %d %s", refused.Status, refused.Body)
		}
	})
}

// TestVisibility publishes for several hubs and accounts and checks what each socket receives.
func TestVisibility(t *testing.T) {
	t.Parallel()
	d := serve(t, daemonConfig{redis: `url: "memory:"`})
	sockets := map[string]*socket{
		"reader, account": d.connect(t, readerKey, "", ""), "reader, hub-1": d.connect(t, readerKey, "hub-1", ""),
		"ops, account": d.connect(t, opsKey, "", ""), "ops, hub-1": d.connect(t, opsKey, "hub-1", ""),
	}
	for _, n := range []struct{ hub, account, id string }{
		{"hub-1", "acme", "1 acme"},
		{"hub-2", "acme", "2 acme"},
		{"hub-3", "acme", "3 acme"},
		{"hub-1", "other", "1 other"},
		{"hub-2", "other", "2 other"},
		{"hub-1", "", "1 none"},
		{"hub-1", "acme", "end"},
	} {
		d.Publish(t, n.hub, "application/json", fmt.Sprintf(
			`{"topic":"job.created","object":{"id":%q},"context":{"account_id":%q}}`, n.id, n.account), nil)
	}
	// A notification without an account belongs to its hub.
	for name, want := range map[string][]string{
		"reader, account": {"1 acme", "2 acme", "1 none", "end"},
		"reader, hub-1":   {"1 acme", "1 none", "end"},
		"ops, account":    {"1 acme", "2 acme", "3 acme", "1 other", "2 other", "1 none", "end"},
		"ops, hub-1":      {"1 acme", "1 other", "1 none", "end"},
	} {
		testkit.Eventually(t, name, sockets[name].receivedAll([]string{"end"}))
		frames, _ := sockets[name].snapshot()
		if got := objectIDs(frames); !slices.Equal(got, want) {
			t.Errorf("%s sees %q, want %q", name, got, want)
		}
	}
}

// TestKeyExpires opens a socket with a key that expires long before the next ping.
func TestKeyExpires(t *testing.T) {
	t.Parallel()
	const key = "brief-key-0123456789abcdef"
	text := daemonConfig{redis: `url: "memory:"`, env: []string{"HUBRELAY_WEBSOCKET__PING_INTERVAL=1h"}}
	file := writeFile(t, tempDir(t), "hubrelay.yaml", text.renderYAML())
	d := serveFile(t, file, text.env...)
	stays := d.connect(t, opsKey, "hub-1", "")
	var expires time.Time
	var ws *socket
	var token string
	// If the machine is too slow to open the stream in time, use twice the lifetime.
	for n, life := 1, 4*time.Second; ws == nil; n, life = n+1, 2*life {
		if life > patience {
			t.Fatal("the key opens nothing")
		}
		expires = time.Now().Add(life).UTC()
		text.keys = fmt.Sprintf(`
    - {name: brief, key: %s, hubs: ["*"], expires: %s}`, key, expires.Format(time.RFC3339))
		d.reconfigure(t, file, text, n)
		ws, token = d.brief(t, key)
	}
	if closed := ws.closed(t, websocket.ClosePolicyViolation); !strings.Contains(closed.Text, "expired") {
		t.Errorf("it was closed for the reason %q", closed.Text)
	}
	if early := time.Until(expires.Truncate(time.Second)); early > 0 {
		t.Errorf("it was closed %s too early", early)
	}
	wantError(t, d.Do(t, testkit.Request{Method: "GET", Key: key, Hub: "hub-1"}), "401.auth-expired", "", "expired")
	if _, refused := d.upgrade(t, "?token="+token, nil); refused.Status != http.StatusUnauthorized {
		t.Errorf("a token of the expired key was answered %d %s", refused.Status, refused.Body)
	}
	d.Publish(t, "hub-1", "application/json", plain, nil)
	stays.wait(t, 1)
}

// brief opens a stream of hub-1 and requests another token, unless the key has expired.
func (d *daemon) brief(t *testing.T, key string) (ws *socket, token string) {
	t.Helper()
	for range 2 {
		r := d.Do(t, testkit.Request{Method: "GET", Key: key, Hub: "hub-1"})
		if r.Status == http.StatusUnauthorized {
			return nil, ""
		}
		if _, err := fmt.Sscanf(r.Body, `{"data":{"token":%q}}`, &token); err != nil {
			t.Fatalf("answered %d %s: %v", r.Status, r.Body, err)
		}
		if ws == nil {
			conn, refused := d.upgrade(t, "?token="+token, nil)
			if conn == nil && refused.Status == http.StatusUnauthorized {
				return nil, ""
			} else if conn == nil {
				t.Fatalf("the upgrade was answered %d %s", refused.Status, refused.Body)
			}
			ws = listenOn(conn)
		}
	}
	return ws, token
}

// writeCertificate writes a new certificate for 127.0.0.1 and returns it. It replaces the files atomically.
func writeCertificate(t *testing.T, dir string, serial int64) *x509.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(serial), Subject: pkix.Name{
			CommonName: "hubrelay test",
		}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{
			net.IPv4(127, 0, 0, 1),
		},
	}
	raw, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for name, block := range map[string]*pem.Block{
		"cert.pem": {Type: "CERTIFICATE", Bytes: raw}, "key.pem": {Type: "PRIVATE KEY", Bytes: private},
	} {
		file := writeFile(t, dir, name+".new", string(pem.EncodeToMemory(block)))
		if err := os.Rename(file, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	cert, err := x509.ParseCertificate(raw)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

func TestTLS(t *testing.T) {
	t.Parallel()
	dir := tempDir(t)
	cert := writeCertificate(t, dir, 1)
	roots := x509.NewCertPool()
	roots.AddCert(cert)
	text := daemonConfig{
		redis:  `url: "memory:"`,
		server: `, tls: {cert_file: cert.pem, key_file: key.pem}, public_url: "https://events.example.com/relay"`,
	}
	d := serveFile(t, writeFile(t, dir, "hubrelay.yaml", text.renderYAML()))

	get := func(h2 bool, path string) (*http.Response, error) {
		protocols := new(http.Protocols)
		protocols.SetHTTP1(!h2)
		protocols.SetHTTP2(h2)
		transport := &http.Transport{Protocols: protocols, TLSClientConfig: &tls.Config{RootCAs: roots}}
		t.Cleanup(transport.CloseIdleConnections)
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+d.Public+path, http.NoBody)
		if err != nil {
			return nil, err
		}
		req.Header.Set("Authorization", "Bearer "+opsKey)
		req.Header.Set("X-Hub-Id", "hub-1")
		return (&http.Client{Transport: transport, Timeout: patience}).Do(req)
	}
	read := func(h2 bool, path string) testkit.Reply {
		t.Helper()
		res, err := get(h2, path)
		if err != nil {
			t.Fatal(err)
		}
		r, err := testkit.ReadReply(res)
		if err != nil {
			t.Fatal(err)
		}
		if h2 != (res.ProtoMajor == 2) {
			t.Errorf("answered over %s", res.Proto)
		}
		return r
	}
	link := read(false, notificationsPath).Header.Get("Link")
	wss, ok := strings.CutPrefix(link, "<wss://events.example.com/relay"+notificationsPath+"?token=")
	token, end := strings.CutSuffix(wss, `>; rel="notifications"`)
	if !ok || !end {
		t.Fatalf("Link is %s", link)
	}
	// HTTP/2 clients get a token too, but the stream requires HTTP/1.1.
	if r := read(true, notificationsPath); r.Status != http.StatusOK {
		t.Errorf("a token over HTTP/2 was answered %d %s", r.Status, r.Body)
	}
	wantError(t, read(true, notificationsPath+"?token="+token), "426.upgrade-required", "", "HTTP/1.1")
	wantError(t, read(true, "/nowhere"), "404.uri", "", "/nowhere")

	dialer := &websocket.Dialer{HandshakeTimeout: patience, TLSClientConfig: &tls.Config{RootCAs: roots}}
	conn, _, err := dialer.Dial("wss://"+d.Public+notificationsPath+"?token="+token,
		http.Header{"Origin": {"https://events.example.com"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	ws := listenOn(conn)

	writeCertificate(t, dir, 2)
	testkit.Eventually(t, "the new certificate", func() error {
		conn, err := tls.Dial("tcp", d.Public, &tls.Config{InsecureSkipVerify: true})
		if err != nil {
			return err
		}
		defer func() { _ = conn.Close() }()
		if serial := conn.ConnectionState().PeerCertificates[0].SerialNumber.Int64(); serial != 2 {
			return fmt.Errorf("its number is %d", serial)
		}
		return nil
	})
	// The old socket stays open.
	publishOverTLS(t, d.Public)
	ws.wait(t, 1)
}

func publishOverTLS(t *testing.T, address string) {
	t.Helper()
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
	defer transport.CloseIdleConnections()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://"+address+notificationsPath,
		strings.NewReader(plain))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+opsKey)
	req.Header.Set("X-Hub-Id", "hub-1")
	req.Header.Set("Content-Type", "application/json")
	res, err := (&http.Client{Transport: transport, Timeout: patience}).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	if r, err := testkit.ReadReply(res); err != nil || r.Status != http.StatusAccepted {
		t.Fatalf("publish was answered %d %s, %v", r.Status, r.Body, err)
	}
}
