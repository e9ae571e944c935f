package httpclient

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"go.uber.org/goleak"

	"github.com/hubrelay/hubrelay/internal/netguard"
	"github.com/hubrelay/hubrelay/internal/redact"
	"github.com/hubrelay/hubrelay/internal/testkit"
)

func TestMain(m *testing.M) {
	testkit.RunParallel(8) // the tests wait most of the time
	goleak.VerifyTestMain(m)
}

func localGuard(t testing.TB) *netguard.Guard {
	t.Helper()
	g, err := netguard.New([]string{"127.0.0.0/8", "::1"})
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func TestParseTarget(t *testing.T) {
	t.Parallel()
	strict, err := netguard.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	for text, problem := range map[string]string{
		"https://example.com/s3cret":              "",
		"http://u:s3cret@example.com:8080/s3cret": "",
		"s3cret":                          "must begin",
		"ftp://example.com/s3cret":        "must begin",
		"https:///s3cret":                 "has no host",
		"https://exa mple.com/s3cret":     "is not a URL",
		"https://example.com/s3cret#":     "fragment",
		"https://example.com:0/s3cret":    "port",
		"https://example.com:9999999/":    "port",
		"https://127.0.0.1/s3cret":        "allow_cidrs",
		"https://[::ffff:a01:203]/s3cret": "allow_cidrs",
		// A space would end the request line.
		"https://example.com/x?s3cret b":       "contains a space",
		"https://example.com/s3cret\thttps://": "is not a URL",
		"https://example.com/s3cret\nhttps://": "more than one line",
	} {
		target, err := ParseTarget(text, strict)
		switch {
		case problem == "":
			if err != nil || target.URL().String() != text {
				t.Errorf("ParseTarget(%q): got error %v", text, err)
			}
		case err == nil || !strings.Contains(err.Error(), problem) || strings.Contains(err.Error(), "s3cret"):
			t.Errorf("ParseTarget(%q): got error %v, want %q", text, err, problem)
		}
	}
}

func TestTargetRedact(t *testing.T) {
	t.Parallel()
	target, err := ParseTarget("https://user:p4ss@example.com/services/T0000/a%2Fbc/t0ken?key=qu3ry&x=1", localGuard(t))
	if err != nil {
		t.Fatal(err)
	}
	for in, want := range map[string]string{
		"no such hook at example.com/services": "no such hook at example.com/services",
		"/services/T0000/a%2Fbc/t0ken":         redact.Replacement,
		"/services/T0000/a/bc/t0ken":           redact.Replacement,
		"<t0ken> T0000":                        "<" + redact.Replacement + "> " + redact.Replacement,
		"qu3ry, p4ss, user":                    strings.Join([]string{redact.Replacement, redact.Replacement, redact.Replacement}, ", "),
	} {
		if got := target.Secrets().Text(in); got != want {
			t.Errorf("Text(%q) = %q, want %q", in, got, want)
		}
	}
}

// A server that answers with something else than HTTP may repeat secrets in it, also in base64.
func TestTarget_RedactError(t *testing.T) {
	t.Parallel()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer func() { _ = conn.Close() }()
		_, _ = fmt.Fprintf(conn, "no-HTTP:%s,%s,%s\r\n\r\n", r.URL.Path, r.Header.Get("X-Key"),
			base64.StdEncoding.EncodeToString([]byte("user:"+r.Header.Get("X-Key"))))
	}))
	defer srv.Close()
	c := NewClient(localGuard(t), nil)
	defer c.Close()
	target, err := ParseTarget(srv.URL+"/s3cret", localGuard(t))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := c.transport.Post(t.Context(), &Request{
		Head: NewRequestTemplate(target.URL(), http.Header{"X-Key": {"other-key"}}),
	})
	if err == nil {
		_ = resp.Body.Close()
		t.Fatal("got no error")
	}
	err = target.RedactError(t.Context(), err, target.Secrets().With("other-key"))
	if err == nil || !strings.Contains(err.Error(), "no-HTTP") || !strings.Contains(err.Error(), redact.Replacement) {
		t.Fatalf("got error %v, want one with the redacted response", err)
	}
	for _, secret := range []string{"s3cret", "other-key", base64.StdEncoding.EncodeToString([]byte("other-key"))[:8]} {
		if strings.Contains(err.Error(), secret) {
			t.Errorf("got %q in error %v", secret, err)
		}
	}
}

func TestClientPost(t *testing.T) {
	t.Parallel()
	conns := map[string]bool{}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		conns[r.RemoteAddr] = true
		w.Header().Set("Location", "/elsewhere")
		w.WriteHeader(http.StatusFound)
		_, _ = fmt.Fprint(w, r.Method, " ", r.Header.Get("X-A"), " ", len(body), strings.Repeat("é", len(body)))
	}))
	defer srv.Close()
	c := NewClient(localGuard(t), nil)
	defer c.Close()
	target, err := ParseTarget(srv.URL+"/s3cret", localGuard(t))
	if err != nil {
		t.Fatal(err)
	}
	for size, truncated := range map[int]bool{0: false, 10: false, 600: true, 20_000: true} {
		resp, err := c.Post(t.Context(), target, http.Header{"X-A": {"b"}}, make([]byte, size))
		if err != nil {
			t.Fatal(err)
		}
		if resp.Status != http.StatusFound || resp.Truncated != truncated {
			t.Errorf("%d bytes: got status %d, truncated %v; want %d, %v",
				size, resp.Status, resp.Truncated, http.StatusFound, truncated)
		}
		if len(resp.Body) > MaxResponseBody || !utf8.ValidString(resp.Body) ||
			!strings.HasPrefix(resp.Body, fmt.Sprint("POST b ", size)) {
			t.Errorf("%d bytes: got body %q", size, resp.Body)
		}
	}
	if len(conns) != 1 {
		t.Errorf("got %d connections, want 1", len(conns))
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = c.Post(ctx, target, nil, nil)
	if !errors.Is(err, context.Canceled) || strings.Contains(err.Error(), "s3cret") {
		t.Errorf("Post() with a canceled context: got %v, want context.Canceled without secrets", err)
	}
	strict, _ := netguard.New(nil)
	guarded := NewClient(strict, nil)
	defer guarded.Close()
	var blocked *netguard.BlockedError
	if _, err = guarded.Post(t.Context(), target, nil, nil); !errors.As(err, &blocked) {
		t.Errorf("Post() to a private address: got %v, want a BlockedError", err)
	}
}

func TestRetryAfter(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)
	for value, want := range map[string]time.Duration{
		"": -1, "soon": -1, "-5": -1, "0": 0, "7": 7 * time.Second, "99999999999999999": MaxRetryAfter,
		strings.Repeat("9", 30):         MaxRetryAfter,
		"Sun, 01 Nov 2026 12:01:00 GMT": time.Minute, "Mon, 02 Jan 2006 15:04:05 GMT": 0, "1.5": -1,
	} {
		got, ok := RetryAfter(http.Header{"Retry-After": {value}}, now)
		if !ok {
			got = -1
		}
		if got != want {
			t.Errorf("RetryAfter(%q) = %s, want %s", value, got, want)
		}
	}
}

func FuzzReadResponse(f *testing.F) {
	f.Add("https://hooks.slack.com/services/T0000/B0000/token", "x/services/T0000/B0000/tok", 1020)
	f.Fuzz(func(t *testing.T, text, answer string, pad int) {
		target, err := ParseTarget(text, &netguard.Guard{})
		if err != nil {
			return
		}
		body := strings.Repeat("-", int(uint(pad)%2000)) + answer + target.URL().Path
		got, _ := ReadResponse(strings.NewReader(body), target.Secrets())
		if len(got) > MaxResponseBody || !utf8.ValidString(got) {
			t.Errorf("got %d bytes, want at most %d of valid UTF-8", len(got), MaxResponseBody)
		}
	})
}

func ExampleTarget_Secrets() {
	g, _ := netguard.New(nil)
	target, _ := ParseTarget("https://hooks.slack.com/services/T0000/B0000/abcdef", g)
	fmt.Println(target.Host(), "says:", target.Secrets().Text("no service at /services/T0000/B0000/abcdef"))
	// Output: hooks.slack.com says: no service at (redacted)
}
