package webhook

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/internal/netguard"
	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/sinks/sinktest"
)

// testProxy accepts CONNECT and SOCKS5 and records the requested targets.
type testProxy struct {
	address string
	wg      sync.WaitGroup
	mu      sync.Mutex
	asked   []string
	login   string
	tls     *tls.Config
}

func startProxy(t *testing.T, config *tls.Config) *testProxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &testProxy{address: l.Addr().String(), tls: config}
	t.Cleanup(func() { _ = l.Close(); p.wg.Wait() })
	p.wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			p.wg.Go(func() { defer func() { _ = conn.Close() }(); p.serve(conn) })
		}
	})
	return p
}

func (p *testProxy) serve(conn net.Conn) {
	if p.tls != nil {
		conn = tls.Server(conn, p.tls)
	}
	r := bufio.NewReader(conn)
	first, err := r.Peek(1)
	if err != nil {
		return
	}
	target, login := "", ""
	if first[0] == 5 {
		target, login = p.socks(r, conn)
	} else if req, err := http.ReadRequest(r); err == nil && req.Method == http.MethodConnect {
		target, login = req.Host, req.Header.Get("Proxy-Authorization")
		_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\n\r\n")
	} else {
		return
	}
	p.mu.Lock()
	p.asked, p.login = append(p.asked, target), login
	p.mu.Unlock()
	far, err := net.Dial("tcp", target)
	if err != nil {
		return
	}
	p.wg.Go(func() { _, _ = io.Copy(conn, far); _ = conn.Close() })
	_, _ = io.Copy(far, r)
	_ = far.Close()
}

func (p *testProxy) socks(r *bufio.Reader, w io.Writer) (target, login string) {
	read := func(n int) []byte { b := make([]byte, n); _, _ = io.ReadFull(r, b); return b }
	if n := int(read(2)[1]); n == 2 {
		read(n)
		_, _ = w.Write([]byte{5, 2})
		user := read(int(read(2)[1]))
		login = string(user) + ":" + string(read(int(read(1)[0])))
		_, _ = w.Write([]byte{1, 0})
	} else {
		read(n)
		_, _ = w.Write([]byte{5, 0})
	}
	size := 4
	if read(4)[3] == 4 {
		size = 16
	}
	addr, _ := netip.AddrFromSlice(read(size))
	port := read(2)
	_, _ = w.Write([]byte{5, 0, 0, 1, 0, 0, 0, 0, 0, 0})
	return netip.AddrPortFrom(addr, uint16(port[0])<<8|uint16(port[1])).String(), login
}

func (p *testProxy) seen() ([]string, string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.asked, p.login
}

func TestProxy(t *testing.T) {
	t.Parallel()
	redirects := 0
	answer := func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/moved" {
			w.Header().Set("Location", "http://169.254.169.254/")
			w.WriteHeader(http.StatusTemporaryRedirect)
			redirects++
		}
	}
	plain, _ := capture(t, answer)
	secure := httptest.NewTLSServer(http.HandlerFunc(answer))
	defer secure.Close()
	ca := filepath.Join(t.TempDir(), "ca.pem")
	writePEM(t, ca, "CERTIFICATE", secure.Certificate().Raw)
	for _, c := range []struct{ scheme, login string }{
		{"http", "Basic bWU6czNjcmV0"},
		{"https", "Basic bWU6czNjcmV0"},
		{"socks5", "me:s3cret"},
		{"http", ""},
		{"socks5", ""},
	} {
		var config *tls.Config
		if c.scheme == "https" {
			config = &tls.Config{Certificates: secure.TLS.Certificates, MinVersion: tls.VersionTLS12}
		}
		p := startProxy(t, config)
		through := c.scheme + "://" + p.address
		if c.login != "" {
			through = c.scheme + "://me:s3cret@" + p.address
		}
		for _, to := range []string{plain.URL, secure.URL} {
			cfg := &Config{URL: to + "/moved", Proxy: through, TLS: TLS{CAFile: ca}}
			if c.scheme != "https" && to == plain.URL {
				cfg.TLS = TLS{}
			} else if to == plain.URL {
				continue // a private authority is named by tls, which is for https
			}
			s := openTest(t, cfg)
			err := s.Deliver(t.Context(), sinktest.Sample("a"))
			var a *relay.ResponseError
			if !errors.As(err, &a) || a.Status != http.StatusTemporaryRedirect {
				t.Errorf("%s to %s: %v", through, to, err)
			}
			_ = s.Close()
			asked, login := p.seen()
			if n := len(asked); n == 0 || !strings.HasSuffix(to, asked[n-1]) || login != c.login {
				t.Errorf("%s was asked for %v by %q", through, asked, login)
			}
		}
	}
	if redirects == 0 {
		t.Error("nothing was redirected")
	}
}

// The proxy receives no request for an internal target.
func TestGuardBeforeProxy(t *testing.T) {
	t.Parallel()
	p := startProxy(t, nil)
	for _, scheme := range []string{"http", "socks5"} {
		for _, host := range []string{
			"inwards.test", "[::1]", "127.0.0.1", "[::ffff:10.0.0.1]", "[64:ff9b::a9fe:a9fe]",
			"169.254.169.254", p.address,
		} {
			s, err := open(settings, &Config{URL: "https://example.com/", Proxy: scheme + "://" + p.address}, nil)
			if err != nil {
				t.Fatal(err)
			}
			through, _ := (&Config{Proxy: scheme + "://" + p.address}).parsedProxy()
			s.transports.currentTransport().SetDialer((&proxyDialer{
				url: through, guard: mustGuard(t), resolver: inwards{},
			}).DialContext)
			to, err := (&Config{}).parseEndpoint("http://"+host+"/", mustGuard(t, "0.0.0.0/0", "::/0"))
			if err != nil {
				t.Fatal(err)
			}
			s.endpoint = func() *endpoint { return to }
			err = s.Deliver(t.Context(), sinktest.Sample("a"))
			var refused *netguard.BlockedError
			if !errors.As(err, &refused) {
				t.Errorf("%s %s: %v", scheme, host, err)
			}
			_ = s.Close()
		}
	}
	if asked, _ := p.seen(); len(asked) != 0 {
		t.Errorf("the proxy was asked for %v", asked)
	}
}

type inwards struct{}

func (inwards) LookupNetIP(context.Context, string, string) ([]netip.Addr, error) {
	return []netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("::1")}, nil
}

// A proxy that refuses, hangs or talks nonsense costs the attempt only, and no error shows the password.
func TestBadProxy(t *testing.T) {
	t.Parallel()
	for _, answer := range []string{
		"HTTP/1.1 407 s3cret\r\n\r\n", "HTTP/1.1 200 OK\r\n\r\nahead", "nonsense\r\n\r\n",
		"\x05\xff", "\x05\x00\x05\x05\x00\x01", "",
	} {
		address := strings.TrimPrefix(rawServer(t, answer), "http://")
		for _, scheme := range []string{"http", "https", "socks5"} {
			s := openTest(t, &Config{URL: "http://127.0.0.1:1/", Proxy: scheme + "://me:s3cret@" + address})
			err := deliverWithin(t, s, 200*time.Millisecond)
			if outcome, _ := relay.Classify(err); err == nil || outcome != relay.OutcomeRetry ||
				strings.Contains(err.Error(), "s3cret") {
				t.Errorf("%s %q: %v", scheme, answer, err)
			}
		}
	}
}

func writePEM(t *testing.T, name, kind string, der []byte) {
	t.Helper()
	if err := os.WriteFile(name, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
}

// writePair makes a certificate of that name for a client, and returns it.
func writePair(t *testing.T, dir, name string) *x509.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), DNSNames: []string{name},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	writePEM(t, filepath.Join(dir, "cert.pem"), "CERTIFICATE", der)
	writePEM(t, filepath.Join(dir, "key.pem"), "PRIVATE KEY", secret)
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

func TestClientCertificate(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	names := make(chan string, 10)
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		names <- r.TLS.PeerCertificates[0].DNSNames[0]
	}))
	srv.TLS = &tls.Config{ClientAuth: tls.RequireAnyClientCert, MinVersion: tls.VersionTLS12}
	srv.EnableHTTP2 = true
	srv.StartTLS()
	defer srv.Close()
	writePEM(t, filepath.Join(dir, "ca.pem"), "CERTIFICATE", srv.Certificate().Raw)
	writePair(t, dir, "first")
	files := TLS{
		CertFile: filepath.Join(dir, "cert.pem"), KeyFile: filepath.Join(dir, "key.pem"),
		CAFile: filepath.Join(dir, "ca.pem"), ServerName: "example.com",
	}
	s := openTest(t, &Config{URL: srv.URL, TLS: files})
	deliver := func() string {
		t.Helper()
		if err := s.Deliver(t.Context(), sinktest.Sample("a")); err != nil {
			t.Fatal(err)
		}
		return <-names
	}
	if got := deliver(); got != "first" {
		t.Errorf("the certificate is %s", got)
	}
	writePair(t, dir, "second one")
	testkit.WaitForValue(t, "the changed certificate is used", "second one", func() string { return deliver() })
	bare := openTest(t, &Config{URL: srv.URL, TLS: TLS{CAFile: files.CAFile}})
	if err := bare.Deliver(t.Context(), sinktest.Sample("a")); err == nil {
		t.Error("delivered without a certificate")
	}
	files.ServerName = "elsewhere.test"
	other := openTest(t, &Config{URL: srv.URL, TLS: files})
	if err := other.Deliver(t.Context(), sinktest.Sample("a")); err == nil ||
		!strings.Contains(err.Error(), "elsewhere.test") {
		t.Errorf("another name gave %v", err)
	}
}

func TestHeadersAndFiles(t *testing.T) {
	t.Parallel()
	srv, last := capture(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/two" {
			w.WriteHeader(http.StatusUnauthorized)
			_, _ = io.WriteString(w, "bad: "+r.Header.Get("Authorization")+" "+r.Header.Get("X-Key"))
		}
	})
	dir := t.TempDir()
	urlFile, bearerFile := filepath.Join(dir, "url"), filepath.Join(dir, "bearer")
	put := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	put(urlFile, srv.URL+"/one\n")
	put(bearerFile, "s3cret-one\n")
	s := openTest(t, &Config{
		URLFile: urlFile, BearerFile: bearerFile, Secrets: []string{secretA},
		Headers: map[string]string{"x-key": "s3cret-key", "user-agent": "me"},
	})
	if err := s.Deliver(t.Context(), sinktest.Sample("a")); err != nil {
		t.Fatal(err)
	}
	r, sent := last()
	if got := r.URL.Path + r.Header.Get("Authorization") + r.Header.Get("X-Key") +
		r.UserAgent(); got != "/oneBearer s3cret-ones3cret-keyme" {
		t.Errorf("sent %s", got)
	}
	if !verify(t, secretA, r.Header, sent) {
		t.Error("the signature does not verify")
	}
	e, err := s.Preview(t.Context(), sinktest.Sample("a"))
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range e.Headers {
		if strings.Contains(h.Value, "s3cret") || h.Value == "me" {
			t.Errorf("Explain shows %v", h)
		}
	}
	put(urlFile, srv.URL+"/two\n")
	put(bearerFile, "s3cret-two-and-longer\n")
	var answer *relay.ResponseError
	testkit.Eventually(t, "the changed files to be read", func() error {
		err := s.Deliver(t.Context(), sinktest.Sample("a"))
		r, _ := last()
		sent := r.Header.Get("Authorization") // the sink checks each file at its own time
		if !errors.As(err, &answer) || sent != "Bearer s3cret-two-and-longer" {
			return fmt.Errorf("sent %s, got %s", sent, fmt.Sprint(err))
		}
		return nil
	})
	if strings.Contains(answer.Body, "s3cret") || !strings.Contains(answer.Body, "bad: Bearer (redacted)") {
		t.Errorf("the dead letter would show %q", answer.Body)
	}
}

func TestStandardFormat(t *testing.T) {
	t.Parallel()
	srv, last := capture(t, nil)
	s := openTest(t, &Config{URL: srv.URL, Format: formatStandard, Secrets: []string{secretA}})
	d := sinktest.Sample("65f0c2a00123456789abcdef")
	var first string
	for attempt := range 2 {
		d.Attempt = attempt + 1
		s.now = func() time.Time { return time.Now().Add(time.Duration(attempt) * time.Hour) }
		if err := s.Deliver(t.Context(), d); err != nil {
			t.Fatal(err)
		}
		r, sent := last()
		if !verify(t, secretA, r.Header, sent) {
			t.Error("the signature does not verify")
		}
		if attempt == 0 {
			first = string(sent)
		} else if string(sent) != first {
			t.Errorf("attempt 2 sent %s, attempt 1 %s", sent, first)
		}
	}
	var got struct {
		Type      string
		Timestamp time.Time
		Data      json.RawMessage
	}
	if err := json.Unmarshal([]byte(first), &got); err != nil {
		t.Fatal(err)
	}
	if got.Type != "container.created" || string(got.Data) != string(d.Notifications[0].Data) ||
		got.Timestamp.Unix() != 0x65f0c2a0 {
		t.Errorf("sent %s", first)
	}
	byCursor := relay.Notification{ID: "a", Cursor: "1763700000123-4"}.OccurredAt()
	if byCursor.UnixMilli() != 1763700000123 {
		t.Errorf("the cursor's time is %s", byCursor)
	}
	d.Notifications = append(d.Notifications, d.Notifications[0])
	if outcome, _ := relay.Classify(s.Deliver(t.Context(), d)); outcome != relay.OutcomePermanent {
		t.Errorf("several events: %s", outcome)
	}
}
