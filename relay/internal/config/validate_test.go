package config_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/relay/internal/auth"
	"github.com/hubrelay/hubrelay/relay/internal/config"
)

func TestRedisURL(t *testing.T) {
	shown := map[string]string{ // expected output of Print
		"":                                "",
		"memory:":                         "memory:",
		"redis://localhost":               "redis://localhost",
		"redis://:p%40ss@[::1]:6379/2":    "redis://(redacted)@[::1]:6379/2",
		"rediss://u:p@redis.example:6380": "rediss://(redacted)@redis.example:6380",
		"unix:///run/redis.sock?db=1":     "unix:///run/redis.sock?(redacted)",
		"redis+cluster://a:1,b:2,c:3":     "redis+cluster://a:1,b:2,c:3",
		"redis+sentinel://u:p@a:1,b:2/mymaster?sentinel_password=x": "redis+sentinel://(redacted)@a:1," +
			"b:2/mymaster?(redacted)",
	}
	for url, want := range shown {
		cfg, err := config.Load(writeConfig(t, keys), []string{"HUBRELAY_REDIS__URL=" + url}, config.Kinds{})
		if err != nil {
			t.Errorf("%s: %v", url, err)
			continue
		}
		if got := cfg.Redis.Address(); got != want && (url != "" || !strings.HasPrefix(got, "embedded, in /")) {
			t.Errorf("address of %s: got %s", url, got)
		}
		var out bytes.Buffer
		if err := cfg.Print(&out); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(out.String(), "url: "+want) && !strings.Contains(out.String(), `url: "`+want+`"`) {
			t.Errorf("%s: want %s in the output:\n%s", url, want, out.String())
		}
	}
	for _, url := range []string{
		"localhost:6379", "http://localhost", "unix://", "unix://x/y", "redis://a,b", "redis+sentinel://a:1",
		"redis+cluster://", "memory:x",
	} {
		if _, err := config.Load(writeConfig(t, keys), []string{"HUBRELAY_REDIS__URL=" + url},
			config.Kinds{}); err == nil {
			t.Errorf("accepted %s", url)
		}
	}
}

// The embedded Redis has no replicas, so every publish would be rejected.
func TestMinReplicas_RequiresExternalRedis(t *testing.T) {
	for url, want := range map[string]string{
		"": "redis.min_replicas", "memory:": "redis.min_replicas", "redis://localhost": "",
	} {
		cfg, err := config.Load(writeConfig(t,
			keys+"redis: {min_replicas: 1}\n"), []string{"HUBRELAY_REDIS__URL=" + url},
			config.Kinds{})
		switch {
		case want == "" && (err != nil || cfg.Redis.MinReplicas != 1):
			t.Errorf("%s: %v", url, err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%q: %v", url, err)
		}
	}
}

// Reading a pipe would block the start or a reload.
func TestLoad_RejectsPipe(t *testing.T) {
	path := writeConfig(t, keys+"redis: {url_file: url}\n")
	if err := syscall.Mkfifo(filepath.Join(filepath.Dir(path), "url"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := config.Load(path, nil, config.Kinds{})
	if err == nil || !strings.Contains(err.Error(), "redis.url_file: ") ||
		!strings.Contains(err.Error(), "is a pipe, not a file") {
		t.Error(err)
	}
}

// A key file may become a pipe after the start. Reading it must fail, and not wait for a writer.
func TestKey_FileBecomesPipe(t *testing.T) {
	file := filepath.Join(t.TempDir(), "key")
	if err := syscall.Mkfifo(file, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := config.Key{Name: "ci", KeyFile: file}.SHA256()
	if err == nil || !strings.Contains(err.Error(), "does not name a regular file") {
		t.Error(err)
	}
}

func TestRedisURLFile(t *testing.T) {
	path := writeConfig(t, keys+"redis: {url_file: url}\n")
	file := filepath.Join(filepath.Dir(path), "url")
	if err := os.WriteFile(file, []byte("redis://u:p@host\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, err := config.Load(path, nil, config.Kinds{})
	if err != nil || cfg.Redis.URL != "redis://u:p@host" {
		t.Fatal(cfg, err)
	}
	_, err = config.Load(path, []string{"HUBRELAY_REDIS__URL=redis://other"}, config.Kinds{})
	if err == nil || !strings.Contains(err.Error(), "redis.url_file: conflicts with redis.url") {
		t.Error(err)
	}
}

// TestCapabilities_MatchAuth compares the known capabilities with package auth.
func TestCapabilities_MatchAuth(t *testing.T) {
	text := "auth: {keys: [{name: ops, key: 0123456789abcdef, hubs: [h], capabilities: [" +
		auth.CapabilityPublish + ", " + auth.CapabilityMigrate + "]}]}"
	if _, err := config.Load(writeConfig(t, text), nil, config.Kinds{}); err != nil {
		t.Error(err)
	}
}

// TestLoad_ReportsAllErrorsOfSink has errors in shared keys and in keys of the kind.
func TestLoad_ReportsAllErrorsOfSink(t *testing.T) {
	path := writeConfig(t, keys+`sinks:
  a:
    type: test
    timeout: 0s
    tokens: ["x y", fine, "z z"]
    ratio: -1
  b: {type: test, ulr: u}
`)
	_, err := config.Load(path, nil, kinds())
	want := strings.ReplaceAll(`FILE:3:3: sinks.a: the ratio does not fit the rest
FILE:3:3: sinks.a.url: is missing: give the address
FILE:5:14: sinks.a.timeout: 0s is out of range; choose a value from 1ms to 1h
FILE:6:14: sinks.a.tokens[0]: holds a space
FILE:6:27: sinks.a.tokens[2]: holds a space
FILE:8:19: sinks.b.ulr: unknown key; did you mean "url"?`, "FILE", path)
	if err == nil || err.Error() != want {
		t.Errorf("got\n%v\nwant\n%s", err, want)
	}
}

func TestTLS(t *testing.T) {
	path := writeConfig(t, keys+"server: {tls: {cert_file: cert.pem, key_file: key.pem}}\n")
	dir := filepath.Dir(path)
	cert, key := certificate(t, time.Now().Add(time.Hour))
	put := func(name string, data []byte) {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	put("cert.pem", cert)
	put("key.pem", key)
	cfg, err := config.Load(path, nil, config.Kinds{})
	if err != nil || !cfg.Server.TLS.Enabled() || len(cfg.Warnings) != 0 {
		t.Fatal(cfg, err)
	}
	old, oldKey := certificate(t, time.Now().Add(-time.Hour))
	put("cert.pem", old)
	if _, err := config.Load(path, nil, config.Kinds{}); err == nil || !strings.Contains(err.Error(), "do not match") {
		t.Error("mismatched key: got", err)
	}
	put("key.pem", oldKey)
	if cfg, err := config.Load(path, nil, config.Kinds{}); err != nil || len(cfg.Warnings) != 1 {
		t.Error("expired certificate: want a warning, got", cfg, err)
	}
}

func certificate(t *testing.T, notAfter time.Time) (cert, key []byte) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: notAfter, DNSNames: []string{"localhost"}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret})
}

// Topics of keys that have no effect are warnings.
func TestLoad_KeyTopics(t *testing.T) {
	cfg, err := config.Load(writeConfig(t, `auth: {keys: [
  {name: a, key: 0123456789abcdef, hubs: ["*"], capabilities: [notifications-publish], topics: ["containr.*", "job.*"]},
  {name: b, key: fedcba9876543210, hubs: ["*"], topics: ["job.*"]}]}
`), nil, config.Kinds{})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, w := range cfg.Warnings {
		_, text, _ := strings.Cut(w.String(), "auth.keys")
		got = append(got, text)
	}
	want := []string{
		`[0].topics[0]: topic pattern "containr.*" matches no topic; the nearest topic is container.created`,
		"[1].topics: has no effect, because the key may not publish; add notifications-publish to its capabilities",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
