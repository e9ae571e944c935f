package webhook

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/hubrelay/hubrelay/internal/httpclient"
	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/sinks/sinktest"
)

func TestMain(m *testing.M) {
	testkit.RunParallel(8) // the tests wait most of the time
	goleak.VerifyTestMain(m)
}

var settings = relay.SinkSettings{Name: "test", Log: slog.New(slog.DiscardHandler), UserAgent: "hubrelay/test"}

const (
	secretA = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	secretB = "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="
)

func openTest(t testing.TB, c *Config) *Sink {
	t.Helper()
	c.AllowCIDRs = append(c.AllowCIDRs, "127.0.0.0/8", "::1")
	if err := c.validate(); err != nil {
		t.Fatal(err)
	}
	s, err := Kind().Open(settings, c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	sink, ok := s.(*Sink)
	if !ok {
		t.Fatalf("Open returned a %T", s)
	}
	return sink
}

// far answers as the suite wishes.
type far struct {
	behavior sinktest.Behavior
	mu       sync.Mutex
	ids      []string
	done     chan struct{}
}

func (f *far) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	f.mu.Lock()
	f.ids = append(f.ids, r.Header.Get("Webhook-Id"))
	f.mu.Unlock()
	switch f.behavior {
	case sinktest.Fail:
		w.WriteHeader(http.StatusInternalServerError)
	case sinktest.Throttle:
		w.Header().Set("Retry-After", "120")
		w.WriteHeader(http.StatusTooManyRequests)
	case sinktest.Reject:
		w.WriteHeader(http.StatusUnprocessableEntity)
	case sinktest.Gone:
		w.WriteHeader(http.StatusGone)
	case sinktest.Hang:
		select {
		case <-f.done:
		case <-r.Context().Done():
		}
	}
}

func TestConformance(t *testing.T) {
	t.Parallel()
	sinktest.Run(t, sinktest.Harness{
		RetryAfter: 2 * time.Minute,
		Batches:    true,
		Secrets:    []string{"s3cretpath", "s3crettoken", "s3cretuser", "s3cretpass", secretA},
		Open: func(t *testing.T, b sinktest.Behavior) (relay.Sink, func() []string) {
			f := &far{behavior: b, done: make(chan struct{})}
			srv := httptest.NewServer(f)
			t.Cleanup(func() { close(f.done); srv.Close() })
			host := srv.Listener.Addr().String()
			if b == sinktest.Unreachable {
				srv.Listener.Close()
			}
			s := openTest(t, &Config{
				URL:     "http://s3cretuser:s3cretpass@" + host + "/s3cretpath?token=s3crettoken",
				Secrets: []string{secretA},
			})
			return s, func() []string { f.mu.Lock(); defer f.mu.Unlock(); return append([]string(nil), f.ids...) }
		},
	})
}

// capture serves one answer and keeps the last request.
func capture(t testing.TB, answer http.HandlerFunc) (*httptest.Server, func() (*http.Request, []byte)) {
	var mu sync.Mutex
	var last *http.Request
	var body []byte
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		mu.Lock()
		last, body = r, b
		mu.Unlock()
		if answer != nil {
			answer(w, r)
		}
	}))
	t.Cleanup(srv.Close)
	return srv, func() (*http.Request, []byte) { mu.Lock(); defer mu.Unlock(); return last, body }
}

// verify follows the text of Standard Webhooks, not our code.
func verify(t *testing.T, secret string, h http.Header, body []byte) bool {
	t.Helper()
	key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(secret, "whsec_"))
	if err != nil {
		t.Fatal(err)
	}
	m := hmac.New(sha256.New, key)
	fmt.Fprintf(m, "%s.%s.%s", h.Get("webhook-id"), h.Get("webhook-timestamp"), body)
	want := "v1," + base64.StdEncoding.EncodeToString(m.Sum(nil))
	for _, s := range strings.Split(h.Get("webhook-signature"), " ") {
		if hmac.Equal([]byte(s), []byte(want)) {
			return true
		}
	}
	return false
}

func TestRequest(t *testing.T) {
	t.Parallel()
	srv, last := capture(t, nil)
	host := srv.Listener.Addr().String()
	s := openTest(t, &Config{URL: "http://me:pw@" + host + "/a%2Fb?x=1", Secrets: []string{secretA, secretB}})
	d := sinktest.Sample("0123456789abcdef01234567")
	if err := s.Deliver(context.Background(), d); err != nil {
		t.Fatal(err)
	}
	r, body := last()
	if string(body) != string(d.Notifications[0].Data) {
		t.Errorf("body %s, want the event as it is", body)
	}
	user, pass, _ := r.BasicAuth()
	got := fmt.Sprint(r.Method, " ", r.RequestURI, " ", r.Host, " ", user, pass, " ", r.Header.Get("Content-Type"), " ",
		r.UserAgent())
	if want := "POST /a%2Fb?x=1 " + host + " mepw application/json hubrelay/test"; got != want {
		t.Errorf("request %s, want %s", got, want)
	}
	if !verify(t, secretA, r.Header, body) || !verify(t, secretB, r.Header, body) {
		t.Errorf("signature %q does not verify with both secrets", r.Header.Get("webhook-signature"))
	}
	at, err := strconv.ParseInt(r.Header.Get("webhook-timestamp"), 10, 64)
	if err != nil || time.Since(time.Unix(at, 0)).Abs() > time.Minute {
		t.Errorf("timestamp %q", r.Header.Get("webhook-timestamp"))
	}
}

func TestUnsigned(t *testing.T) {
	t.Parallel()
	srv, last := capture(t, nil)
	s := openTest(t, &Config{URL: srv.URL})
	if err := s.Deliver(context.Background(), sinktest.Sample("a")); err != nil {
		t.Fatal(err)
	}
	if r, _ := last(); r.Header.Get("webhook-signature") != "" || r.Header.Get("webhook-id") != "a" {
		t.Errorf("headers %v", r.Header)
	}
}

func TestAnswers(t *testing.T) {
	t.Parallel()
	var status int
	var header string
	srv, _ := capture(t, func(w http.ResponseWriter, r *http.Request) {
		if header != "" {
			w.Header().Set("Retry-After", header)
		}
		w.Header().Set("Location", "/elsewhere")
		w.WriteHeader(status)
		if status != 204 && status != 304 {
			_, _ = io.WriteString(w, strings.Repeat("€", 1000))
		}
	})
	s := openTest(t, &Config{URL: srv.URL + "/hook"})
	for _, c := range []struct {
		status int
		header string
		want   relay.Outcome
		min    time.Duration
		max    time.Duration
	}{
		{200, "", relay.OutcomeDelivered, 0, 0},
		{202, "", relay.OutcomeDelivered, 0, 0},
		{204, "", relay.OutcomeDelivered, 0, 0},
		{301, "", relay.OutcomeRetry, 0, 0},
		{302, "", relay.OutcomeRetry, 0, 0},
		{304, "", relay.OutcomeRetry, 0, 0},
		{307, "", relay.OutcomeRetry, 0, 0},
		{400, "", relay.OutcomePermanent, 0, 0},
		{401, "", relay.OutcomeRetry, 0, 0},
		{404, "", relay.OutcomeRetry, 0, 0},
		{410, "", relay.OutcomeGone, 0, 0},
		{413, "", relay.OutcomePermanent, 0, 0},
		{422, "9", relay.OutcomePermanent, 0, 0},
		{429, "7", relay.OutcomeRetry, 7 * time.Second, 7 * time.Second},
		{500, "", relay.OutcomeRetry, 0, 0},
		{503, time.Now().Add(time.Hour).UTC().Format(http.TimeFormat), relay.OutcomeRetry, 59 * time.Minute, time.Hour},
		{503, "soon", relay.OutcomeRetry, 0, 0},
		{503, "99999999999999999", relay.OutcomeRetry, httpclient.MaxRetryAfter, httpclient.MaxRetryAfter},
		{503, "-5", relay.OutcomeRetry, 0, 0},
		{503, "Mon, 02 Jan 2006 15:04:05 GMT", relay.OutcomeRetry, 0, 0},
	} {
		status, header = c.status, c.header
		err := s.Deliver(context.Background(), sinktest.Sample("a"))
		got, wait := relay.Classify(err)
		if got != c.want || wait < c.min || wait > c.max {
			t.Errorf("%d %q: %s after %s (%v), want %s", c.status, c.header, got, wait, err, c.want)
		}
		var answer *relay.ResponseError
		if c.want != relay.OutcomeDelivered && (!errors.As(err, &answer) || answer.Status != c.status) {
			t.Errorf("%d: the error %v does not hold the answer", c.status, err)
		}
		if answer != nil && c.status != 304 && (len(answer.Body) < 1000 || len(answer.Body) > keptResponse ||
			strings.Trim(answer.Body, "€") != "") {
			t.Errorf("%d: kept %d bytes of the answer", c.status, len(answer.Body))
		}
	}
}

// Answers of any sensible length leave the connection usable.
func TestKeepAlive(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	conns := map[string]bool{}
	srv, _ := capture(t, func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		conns[r.RemoteAddr] = true
		mu.Unlock()
		if r.Header.Get("webhook-id") == "bad" {
			w.WriteHeader(500)
		}
		for _, err := w.Write(make([]byte, 40_000)); err == nil && r.Header.Get("webhook-id") == "endless"; {
			_, err = w.Write(make([]byte, 40_000))
		}
	})
	s := openTest(t, &Config{URL: srv.URL})
	for _, id := range []string{"a", "bad", "b", "bad", "c"} {
		_ = s.Deliver(context.Background(), sinktest.Sample(id))
	}
	if len(conns) != 1 {
		t.Errorf("%d connections for 5 attempts, want 1", len(conns))
	}
	if err := s.Deliver(context.Background(), sinktest.Sample("endless")); err != nil {
		t.Errorf("an answer that does not end, with 200: %v", err)
	}
}

func TestHTTP2(t *testing.T) {
	t.Parallel()
	protos := make(chan string, 1)
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter,
		r *http.Request,
	) {
		protos <- r.Proto
	}))
	srv.EnableHTTP2 = true
	srv.StartTLS()
	defer srv.Close()
	c := &Config{URL: srv.URL, AllowCIDRs: []string{"127.0.0.1"}}
	roots := x509.NewCertPool()
	roots.AddCert(srv.Certificate())
	s, err := open(settings, c, &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	if err := s.Deliver(context.Background(), sinktest.Sample("a")); err != nil {
		t.Fatal(err)
	}
	if p := <-protos; p != "HTTP/2.0" {
		t.Errorf("protocol %s", p)
	}
	untrusting := openTest(t, &Config{URL: srv.URL + "/s3cretpath"})
	if err := untrusting.Deliver(context.Background(), sinktest.Sample("a")); err == nil ||
		strings.Contains(err.Error(), "s3cret") {
		t.Errorf("an unknown certificate gave %v", err)
	}
}

// A name that passes the configuration's check is still checked when it is dialed, and no proxy is used.
func TestGuardAtDialTime(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	t.Setenv("HTTP_PROXY", "http://"+l.Addr().String())
	loopback := mustGuard(t, "127.0.0.0/8")
	strict, err := open(settings, &Config{URL: "http://example.com/"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = strict.Close() }()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	inwards, err := (&Config{}).parseEndpoint("http://localhost:"+port+"/", loopback)
	if err != nil {
		t.Fatal(err)
	}
	strict.endpoint = func() *endpoint { return inwards }
	err = strict.Deliver(context.Background(), sinktest.Sample("a"))
	if err == nil || !strings.Contains(err.Error(), "allow_cidrs") {
		t.Errorf("dialling inwards gave %v", err)
	}
}

func TestSecretFileIsReadAgain(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "secret")
	write := func(text string, age time.Duration) {
		t.Helper()
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		at := time.Now().Add(-age)
		if err := os.Chtimes(name, at, at); err != nil {
			t.Fatal(err)
		}
	}
	write(secretA+"\n", time.Hour)
	now := time.Now()
	s, err := newSecrets(&Config{SecretFiles: []string{name}, Secrets: []string{secretB}}, settings.Log,
		func() time.Time { return now })
	if err != nil {
		t.Fatal(err)
	}
	count := func() int { return len(s.allSigners()) }
	if count() != 2 {
		t.Fatalf("%d secrets, want 2", count())
	}
	write(secretA+"\n"+secretB+"\n", time.Minute)
	if count() != 2 {
		t.Error("the file was looked at within a second")
	}
	now = now.Add(time.Second) // interval of file checks
	if count() != 3 {
		t.Errorf("%d secrets after the change, want 3", count())
	}
	write("", 0)
	now = now.Add(time.Second) // interval of file checks
	if count() != 3 {
		t.Errorf("%d secrets after the file became empty, want the last good 3", count())
	}
	_ = os.Remove(name)
	now = now.Add(time.Second) // interval of file checks
	if count() != 3 {
		t.Errorf("%d secrets after the file went away, want the last good 3", count())
	}
}

func BenchmarkDeliver(b *testing.B) {
	srv := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_,
			_ = io.Copy(io.Discard, r.Body)
	}))
	defer srv.Close()
	s := openTest(b, &Config{URL: srv.URL, Secrets: []string{secretA}})
	d := sinktest.Sample("0123456789abcdef01234567")
	b.SetParallelism(8)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if err := s.Deliver(context.Background(), d); err != nil {
				b.Error(err)
			}
		}
	})
}
