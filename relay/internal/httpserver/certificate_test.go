package httpserver

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"log/slog"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/internal/testkit"
)

// writeCertificate writes a self-signed certificate for name, and its key.
func writeCertificate(t *testing.T, dir, name string) (certFile, keyFile string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, DNSNames: []string{"localhost"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	certFile, keyFile = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	for file, block := range map[string]*pem.Block{
		certFile: {Type: "CERTIFICATE", Bytes: cert}, keyFile: {Type: "PRIVATE KEY", Bytes: private},
	} {
		if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return certFile, keyFile
}

func served(t *testing.T, s *Server) string {
	t.Helper()
	conn, err := tls.Dial("tcp", s.Addr().String(), &tls.Config{InsecureSkipVerify: true})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	return conn.ConnectionState().PeerCertificates[0].Subject.CommonName
}

func TestGetCertificate_ReloadsChangedFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var log strings.Builder
	certFile, keyFile := writeCertificate(t, dir, "one")
	c, err := LoadCertificate(certFile, keyFile, slog.New(slog.NewTextHandler(&log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	c.now = func() time.Time { return now }
	name := func() string {
		t.Helper()
		pair, err := c.GetCertificate(nil)
		if err != nil {
			t.Fatal(err)
		}
		leaf, err := x509.ParseCertificate(pair.Certificate[0])
		if err != nil {
			t.Fatal(err)
		}
		return leaf.Subject.CommonName
	}
	step := func(what, want string, logged int) {
		t.Helper()
		now = now.Add(recheckInterval)
		for range 2 {
			if got := name(); got != want {
				t.Errorf("%s: %q is served, want %q", what, got, want)
			}
			now = now.Add(recheckInterval)
		}
		if got := strings.Count(log.String(), "TLS certificate reload failed"); got != logged {
			t.Errorf("%s: %d complaints, want %d:\n%s", what, got, logged, &log)
		}
	}
	step("unchanged", "one", 0)
	writeCertificate(t, dir, "two!")
	step("renewed", "two!", 0)
	if err := os.WriteFile(certFile, []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	step("half written", "two!", 1)
	writeCertificate(t, dir, "three")
	step("whole again", "three", 1)
	if err := os.Remove(keyFile); err != nil {
		t.Fatal(err)
	}
	step("gone", "three", 2)
	writeCertificate(t, dir, "four")
	step("back", "four", 2)
}

func TestServer_ServesRenewedCertificate(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	certFile, keyFile := writeCertificate(t, dir, "one")
	s := run(t, Options{CertFile: certFile, KeyFile: keyFile})
	if got := served(t, s); got != "one" {
		t.Fatalf("%q is served", got)
	}
	writeCertificate(t, dir, "second")
	testkit.WaitForValue(t, "the new certificate is served", "second", func() string { return served(t, s) })
}
