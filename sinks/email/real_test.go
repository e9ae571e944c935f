package email

import (
	"bufio"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"net/mail"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/internal/message"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/sinks/sinktest"
)

// taken is a mail as aiosmtpd took it and Python's email package read it.
type taken struct {
	Port          int
	From          string
	To            []string
	TLS           bool
	Login, Method string
	Headers       map[string]string
	Defects       []string
	Kind          string
	Parts         [][2]string
}

// python finds an interpreter that has aiosmtpd.
func python(t *testing.T) string {
	t.Helper()
	for _, path := range []string{"/usr/bin/python3", "../../.bin/python/bin/python3", "python3"} {
		if exec.Command(path, "-c", "import aiosmtpd").Run() == nil {
			return path
		}
	}
	t.Fatal("there is no python3 with aiosmtpd: make test installs it")
	return ""
}

// serve starts a real mail server, and returns its settings and a function that reads the next mail.
func serve(t *testing.T, mode string) (*Config, func() taken) {
	t.Helper()
	cert, key := certificate(t)
	cmd := exec.Command(python(t), "testdata/server.py", mode, cert, key)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = in.Close(); _ = cmd.Process.Kill(); _ = cmd.Wait() })
	lines := bufio.NewReader(out)
	next := func() taken {
		t.Helper()
		line, err := lines.ReadBytes('\n')
		var m taken
		if err == nil {
			err = json.Unmarshal(line, &m)
		}
		if err != nil {
			t.Fatal(err)
		}
		for i := range m.Parts {
			m.Parts[i][1] = strings.ReplaceAll(m.Parts[i][1], "\r\n", "\n")
		}
		return m
	}
	return &Config{
		Host: "localhost", Port: next().Port, TLS: mode, CAFile: cert, Username: "relay", Password: "s3cret pässword",
		Auth:   "plain",
		Sender: "Störungsdienst <hubrelay@example.com>", To: []string{"ops@example.com"},
		Cc:         []string{"Ünal <boss@example.org>"},
		AllowCIDRs: []string{"127.0.0.0/8", "::1"},
	}, next
}

func certificate(t *testing.T) (cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "localhost"}, DNSNames: []string{"localhost"},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(time.Hour),
		IsCA:     true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	write := func(name, kind string, data []byte) string {
		path := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: data}), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	return write("cert.pem", "CERTIFICATE", der), write("key.pem", "PRIVATE KEY", raw)
}

// hostile is a notification that would like to add headers and markup.
func hostile(id string) relay.Delivery {
	d := sinktest.Sample(id)
	n := &d.Notifications[0]
	n.Topic = "container.error"
	n.Hub = "hub\r\nBcc: evil@example.com"
	n.Data = []byte(`{"topic":"container.error","object":{"id":"inst-7","state":"kaputt \r\nBcc: ` +
		`evil@example.com\r\n\r\n<script>","error":"Zürich: <b>Platte voll</b> \u202e\r\n.\r\nQUIT 💥"},` +
		`"context":{"hub_id":"h","containers":["c1"]},"flags":null}`)
	return d
}

func TestRealServer(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{tlsStart, tlsImplicit} {
		t.Run(mode, func(t *testing.T) {
			c, next := serve(t, mode)
			s := openTest(t, c)
			for range 2 { // an attempt and its repeat
				if err := s.Deliver(t.Context(), hostile("0123456789abcdef01234567")); err != nil {
					t.Fatal(err)
				}
			}
			m, again := next(), next()
			if m.From != "hubrelay@example.com" ||
				!slices.Equal(m.To, []string{"ops@example.com", "boss@example.org"}) || !m.TLS || m.Login != "relay" ||
				m.Method != "PLAIN" {
				t.Errorf("envelope %+v", m)
			}
			want := map[string]string{
				"Message-ID": "<0123456789abcdef01234567.test.hubrelay@example.com>",
				"Subject": "[PROBLEM] Something went wrong with a container as a whole: kaputt Bcc: " +
					"evil@example.com <script> (hub hub Bcc: evil@example.com)",
				"From": "Störungsdienst <hubrelay@example.com>", "To": "ops@example.com",
				"Cc":             "Ünal <boss@example.org>",
				"Auto-Submitted": "auto-generated", "User-Agent": "hubrelay/test",
			}
			for name, value := range want {
				got := strings.NewReplacer(`"`, "").Replace(m.Headers[name])
				if name == "To" {
					got = strings.Trim(got, "<>")
				}
				if got != value {
					t.Errorf("%s: %q, want %q", name, m.Headers[name], value)
				}
			}
			if _, err := mail.ParseDate(m.Headers["Date"]); err != nil || m.Headers["Bcc"] != "" ||
				len(m.Defects) > 0 || m.Headers["References"] == "" {
				t.Errorf("%v, headers %v, defects %v", err, m.Headers, m.Defects)
			}
			if again.Headers["Message-ID"] != m.Headers["Message-ID"] ||
				again.Headers["References"] != m.Headers["References"] {
				t.Errorf("the repeat is %v", again.Headers)
			}
			if m.Kind != "multipart/alternative" || len(m.Parts) != 2 || m.Parts[0][0] != "text/plain" ||
				m.Parts[1][0] != "text/html" {
				t.Fatalf("%s of %v", m.Kind, m.Parts)
			}
			if text := m.Parts[0][1]; !strings.Contains(text, "Error: Zürich: <b>Platte voll</b> . QUIT 💥\n") {
				t.Errorf("%s", text)
			}
			if html := m.Parts[1][1]; !strings.Contains(html, "Zürich: &lt;b&gt;Platte voll&lt;/b&gt; . QUIT 💥") ||
				strings.Contains(html, "<script>") {
				t.Errorf("%s", html)
			}
		})
	}
}

func TestRealServerRefuses(t *testing.T) {
	t.Parallel()
	c, next := serve(t, tlsStart)
	for name, x := range map[string]struct {
		change  func(*Config)
		outcome relay.Outcome
		word    string
	}{
		"login": {func(c *Config) { c.Auth = "login" }, relay.OutcomeDelivered, ""},
		"wrong password": {
			func(c *Config) { c.Password = "s3cret wrong" }, relay.OutcomeRetry,
			"log in to localhost: status 535",
		},
		"no login": {func(c *Config) { c.Username, c.Password = "", "" }, relay.OutcomeRetry, "status 530"},
		"no receiver": {
			func(c *Config) { c.To = []string{"nobody@example.com"} }, relay.OutcomePermanent,
			"send the recipient nobody@example.com to localhost: status 550",
		},
		"unknown CA":   {func(c *Config) { c.CAFile = "" }, relay.OutcomeRetry, "start TLS with localhost: "},
		"another name": {func(c *Config) { c.Host = "127.0.0.2" }, relay.OutcomeRetry, "connect"},
		"in clear": {
			func(c *Config) { c.TLS, c.Username, c.Password = tlsNone, "", "" }, relay.OutcomeRetry,
			"status 530",
		},
		"tls at once": {func(c *Config) { c.TLS = tlsImplicit }, relay.OutcomeRetry, "start TLS with localhost: "},
	} {
		t.Run(name, func(t *testing.T) {
			changed := *c
			x.change(&changed)
			err := openTest(t, &changed).Deliver(t.Context(), sinktest.Sample("a"))
			if outcome, _ := relay.Classify(err); outcome != x.outcome || err != nil &&
				(!strings.Contains(err.Error(), x.word) || strings.Contains(err.Error(), "s3cret")) {
				t.Errorf("%s: %v, want %s", outcome, err, x.word)
			}
			var answer *relay.ResponseError
			if errors.As(err, &answer) && (answer.Body == "" || strings.Contains(answer.Body, "s3cret")) {
				t.Errorf("answer %+v", answer)
			}
			if err == nil {
				if m := next(); m.Method != "LOGIN" {
					t.Errorf("logged in by %s", m.Method)
				}
			}
		})
	}
}

// A digest is one message, and unlisted notifications are counted.
func TestDigestByRealServer(t *testing.T) {
	t.Parallel()
	c, next := serve(t, tlsStart)
	if err := openTest(t, c).Deliver(t.Context(),
		sinktest.SampleDigest("fedcba9876543210fedcba98", 200, 60)); err != nil {
		t.Fatal(err)
	}
	m := next()
	if m.Headers["Subject"] != "[OK] 200 events, hub hub1" || m.Headers["References"] != "" {
		t.Errorf("%v", m.Headers)
	}
	text := m.Parts[0][1]
	if !strings.Contains(text, "container.created: 200\n") ||
		strings.Count(text, "Topic: container.created\n") != message.MaxListed ||
		!strings.Contains(text, "and 150 more\n") {
		t.Errorf("%s", text)
	}
}
