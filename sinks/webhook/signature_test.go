package webhook

import (
	"bytes"
	"compress/gzip"
	"crypto/ed25519"
	"encoding/base64"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/sinks/sinktest"
)

// The key of RFC 8032, 7.1, test 1.
const (
	privateSeed = "whsk_nWGxne/9WmC6hEr0kuwsxERJxWl7MmkZcDusAxyuf2A="
	publicKey   = "11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo="
)

func verifies(t *testing.T, h http.Header, body []byte) bool {
	t.Helper()
	public, err := base64.StdEncoding.DecodeString(publicKey)
	if err != nil {
		t.Fatal(err)
	}
	message := h.Get("webhook-id") + "." + h.Get("webhook-timestamp") + "." + string(body)
	for _, s := range strings.Split(h.Get("webhook-signature"), " ") {
		if encoded, ok := strings.CutPrefix(s, "v1a,"); ok {
			signature, err := base64.StdEncoding.DecodeString(encoded)
			return err == nil && ed25519.Verify(public, []byte(message), signature)
		}
	}
	return false
}

// Private keys sign next to secrets, alone or with their public key, inline or from a file.
func TestPrivateKeys(t *testing.T) {
	t.Parallel()
	seed, _ := base64.StdEncoding.DecodeString(strings.TrimPrefix(privateSeed, "whsk_"))
	whole := "whsk_" + base64.StdEncoding.EncodeToString(ed25519.NewKeyFromSeed(seed))
	file := filepath.Join(t.TempDir(), "keys")
	if err := os.WriteFile(file, []byte(secretB+"\n"+whole+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]*Config{
		"a seed":  {Secrets: []string{secretB, privateSeed}},
		"whole":   {Secrets: []string{whole, secretB}},
		"a file":  {SecretFiles: []string{file}},
		"rotated": {Secrets: []string{secretB, privateSeed, secretA}},
	} {
		srv, last := capture(t, nil)
		c.URL = srv.URL
		if err := openTest(t, c).Deliver(t.Context(), sinktest.Sample("0123456789abcdef01234567")); err != nil {
			t.Fatal(err)
		}
		if r, body := last(); !verifies(t, r.Header, body) || !verify(t, secretB, r.Header, body) {
			t.Errorf("%s: %s", name, r.Header.Get("webhook-signature"))
		}
	}
	other, _, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	mixed := []byte("whsk_" + base64.StdEncoding.EncodeToString(append(bytes.Clone(seed), other...)))
	if _, err := parseSigner(string(mixed)); err == nil || strings.Contains(err.Error(), string(mixed[5:20])) {
		t.Errorf("halves of two keys: %v", err)
	}
}

// The signature covers the uncompressed body. A receiver that rejects compression gets uncompressed bodies for an hour.
func TestCompression(t *testing.T) {
	t.Parallel()
	refuse := false
	srv, last := capture(t, func(w http.ResponseWriter, r *http.Request) {
		if refuse && r.Header.Get("Content-Encoding") != "" {
			w.WriteHeader(http.StatusUnsupportedMediaType)
		}
	})
	s := openTest(t, &Config{
		URL: srv.URL, Secrets: []string{secretA}, Compression: Compression{Enabled: true, MinSize: 200},
	})
	now := time.Now()
	s.compressor.now = func() time.Time { return now }
	d := sinktest.Sample("0123456789abcdef01234567")
	deliver := func() (*http.Request, []byte) {
		t.Helper()
		if err := s.Deliver(t.Context(), d); err != nil {
			t.Fatal(err)
		}
		return last()
	}
	compressed := func() {
		t.Helper()
		r, sent := deliver()
		in, err := gzip.NewReader(bytes.NewReader(sent))
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(in)
		if err != nil || r.Header.Get("Content-Encoding") != "gzip" ||
			string(body) != string(d.Notifications[0].Data) || !verify(t, secretA, r.Header, body) {
			t.Errorf("%v: %s, %v", r.Header, body, err)
		}
		e, err := s.Preview(t.Context(), d)
		if err != nil || string(e.Payload) != string(body) || !hasHeader(e, "content-encoding", "gzip") {
			t.Errorf("%+v, %v", e, err)
		}
	}
	compressed()
	compressed() // with the same writer
	refuse = true
	for range 2 {
		if r, body := deliver(); r.Header.Get("Content-Encoding") != "" ||
			string(body) != string(d.Notifications[0].Data) {
			t.Errorf("%v: %s", r.Header, body)
		}
	}
	refuse, now = false, now.Add(plainDuration+time.Second)
	compressed()
	d.Notifications[0].Data = []byte(`{"short":1}`)
	if r, body := deliver(); r.Header.Get("Content-Encoding") != "" || string(body) != `{"short":1}` {
		t.Errorf("%v: %s", r.Header, body)
	}
}

func hasHeader(e relay.Preview, name, value string) bool {
	for _, h := range e.Headers {
		if h.Name == name && h.Value == value {
			return true
		}
	}
	return false
}

// The vector of the specification's reference libraries.
func TestSignatureVector(t *testing.T) {
	t.Parallel()
	key, err := parseSecret(secretA)
	if err != nil {
		t.Fatal(err)
	}
	got := signatureHeader([]signer{newSigningKey(key)}, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330,
		[]byte(`{"test": 2432232314}`))
	if want := "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="; got != want {
		t.Errorf("signature %s, want %s", got, want)
	}
}

func BenchmarkSign(b *testing.B) {
	key, _ := parseSecret(secretA)
	body := sinktest.Sample("0123456789abcdef01234567").Notifications[0].Data
	b.ReportAllocs()
	for b.Loop() {
		signatureHeader([]signer{newSigningKey(key)}, "0123456789abcdef01234567", 1614265330, body)
	}
}
