package brokers

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"path/filepath"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay"
)

// authority issues certificates. The file contains its own certificate.
type authority struct {
	t    *testing.T
	file string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{t: t, file: filepath.Join(t.TempDir(), "ca.pem")}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority"},
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	var der []byte
	a.key, der = a.sign(template, template, nil)
	var err error
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	writeFile(t, a.file, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})))
	return a
}

func (a *authority) sign(template, parent *x509.Certificate, by *ecdsa.PrivateKey) (*ecdsa.PrivateKey, []byte) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	if by == nil {
		by = key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, by)
	if err != nil {
		a.t.Fatal(err)
	}
	return key, der
}

// issue returns a certificate for a server at 127.0.0.1 or a client, and the files of the certificate and its key.
func (a *authority) issue() (pair tls.Certificate, certFile, keyFile string) {
	a.t.Helper()
	key, der := a.sign(&x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: testUser},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore:   time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}, a.cert, a.key)
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		a.t.Fatal(err)
	}
	cert := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	secret := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})
	if pair, err = tls.X509KeyPair(cert, secret); err != nil {
		a.t.Fatal(err)
	}
	dir := a.t.TempDir()
	certFile = writeFile(a.t, filepath.Join(dir, "cert.pem"), string(cert))
	return pair, certFile, writeFile(a.t, filepath.Join(dir, "key.pem"), string(secret))
}

// serverConfig returns the configuration of a server that requires client certificates.
func (a *authority) serverConfig() *tls.Config {
	pair, _, _ := a.issue()
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	return &tls.Config{
		Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12,
		ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert,
	}
}

// testTLS connects to a server that requires a client certificate: with it, without it, and with another authority.
func testTLS(t *testing.T, a *authority, c Config) {
	t.Helper()
	_, cert, key := a.issue()
	c.TLS = &TLS{CAFile: a.file, CertFile: cert, KeyFile: key}
	if err := (rig{}).deliver(t, startSink(t, c), newDelivery(1)); err != nil {
		t.Errorf("over TLS: %v", err)
	}
	c.TLS = &TLS{CAFile: newAuthority(t).file, CertFile: cert, KeyFile: key}
	expectFailure(t, c, relay.OutcomeRetry, "certificate")
	c.TLS = &TLS{CAFile: a.file}
	expectFailure(t, c, relay.OutcomeRetry)
}

// startTLSProxy starts a listener that decrypts and forwards, for protocols that use TLS from the first byte.
func startTLSProxy(t *testing.T, a *authority, to string) string {
	t.Helper()
	l, err := tls.Listen("tcp", "127.0.0.1:0", a.serverConfig())
	if err != nil {
		t.Fatal(err)
	}
	return testkit.StartProxyOn(t, l, func() string { return to }).Addr()
}

func TestKafkaTLS(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	r, _ := newKafkaRig(t, kfake.TLS(a.serverConfig()), kfake.NumBrokers(1))
	testTLS(t, a, r.config)
}
