package httpclient

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"

	"go.uber.org/goleak"

	"github.com/hubrelay/hubrelay/internal/netguard"
	"github.com/hubrelay/hubrelay/internal/testkit"
)

func TestMain(m *testing.M) {
	testkit.RunParallel(8) // the tests wait most of the time
	goleak.VerifyTestMain(m)
}

func local(t testing.TB) *netguard.Guard {
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
		"https:///s3cret":                 "names no host",
		"https://exa mple.com/s3cret":     "is not a URL",
		"https://example.com/s3cret#":     "fragment",
		"https://example.com:0/s3cret":    "port",
		"https://example.com:9999999/":    "port",
		"https://127.0.0.1/s3cret":        "allow_cidrs",
		"https://[::ffff:a01:203]/s3cret": "allow_cidrs",
		// A blank would end the request's line.
		"https://example.com/x?s3cret b":       "holds a blank",
		"https://example.com/s3cret\thttps://": "is not a URL",
		"https://example.com/s3cret\nhttps://": "more than one line",
	} {
		target, err := ParseTarget(text, strict)
		switch {
		case problem == "" && (err != nil || target.URL().String() != text):
			t.Errorf("%s: %v", text, err)
		case problem != "" && (err == nil || !strings.Contains(err.Error(), problem) || strings.Contains(err.Error(), "s3cret")):
			t.Errorf("%s: %v, want %s", text, err, problem)
		}
	}
}

func TestScrub(t *testing.T) {
	t.Parallel()
	target, err := ParseTarget("https://user:p4ss@example.com/services/T0000/a%2Fbc/t0ken?key=qu3ry&x=1", local(t))
	if err != nil {
		t.Fatal(err)
	}
	for in, want := range map[string]string{
		"no such hook at example.com/services": "no such hook at example.com/services",
		"/services/T0000/a%2Fbc/t0ken":         redacted,
		"/services/T0000/a/bc/t0ken":           redacted,
		"<t0ken> T0000":                        "<" + redacted + "> " + redacted,
		"qu3ry, p4ss, user":                    strings.Join([]string{redacted, redacted, redacted}, ", "),
	} {
		if got := target.Redact(in); got != want {
			t.Errorf("Scrub(%q) = %q, want %q", in, got, want)
		}
	}
	if got := redactTail("see /services/T0000/a", target.secrets); got != "see "+redacted {
		t.Errorf("scrubEnd gave %q", got)
	}
}

func TestPost(t *testing.T) {
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
	c := NewClient(local(t), nil)
	defer c.Close()
	target, err := ParseTarget(srv.URL+"/s3cret", local(t))
	if err != nil {
		t.Fatal(err)
	}
	for size, cut := range map[int]bool{0: false, 10: false, 600: true, 20_000: true} {
		answer, err := c.Post(t.Context(), target, http.Header{"X-A": {"b"}}, make([]byte, size))
		if err != nil {
			t.Fatal(err)
		}
		if answer.Status != http.StatusFound || answer.Truncated != cut || len(answer.Body) > MaxResponseBody || !utf8.ValidString(answer.Body) ||
			!strings.HasPrefix(answer.Body, fmt.Sprint("POST b ", size)) {
			t.Errorf("%d: %+v", size, answer)
		}
	}
	if len(conns) != 1 {
		t.Errorf("%d connections, want 1", len(conns))
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err = c.Post(ctx, target, nil, nil); !errors.Is(err, context.Canceled) || strings.Contains(err.Error(), "s3cret") {
		t.Errorf("a cancelled post gave %v", err)
	}
	strict, _ := netguard.New(nil)
	guarded := NewClient(strict, nil)
	defer guarded.Close()
	var refused *netguard.BlockedError
	if _, err = guarded.Post(t.Context(), target, nil, nil); !errors.As(err, &refused) {
		t.Errorf("a post inwards gave %v", err)
	}
}

func TestRetryAfter(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)
	for value, want := range map[string]time.Duration{
		"": -1, "soon": -1, "-5": -1, "0": 0, "7": 7 * time.Second, "99999999999999999": MaxRetryAfter,
		"Sun, 01 Nov 2026 12:01:00 GMT": time.Minute, "Mon, 02 Jan 2006 15:04:05 GMT": 0, "1.5": -1,
	} {
		got, ok := RetryAfter(http.Header{"Retry-After": {value}}, now)
		if !ok {
			got = -1
		}
		if got != want {
			t.Errorf("%q: %s, want %s", value, got, want)
		}
	}
}

// A pipe that nobody writes to would hold up whoever reads it, and all deliveries with it.
func TestFileBecomesAPipe(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(name, []byte("one"), 0o600); err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	now := time.Now()
	parse := func(text []byte) (string, error) { return string(text), nil }
	f, err := WatchFile(name, parse, slog.New(slog.NewTextHandler(&log, nil)), func() time.Time { return now })
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Remove(name), syscall.Mkfifo(name, 0o600)); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		now = now.Add(checkEvery)
		if got := f.Current(); got != "one" || strings.Count(log.String(), "names no regular file") != 1 {
			t.Errorf("%s, %s", got, log.String())
		}
	}
}

// A file that was away or could not be read is read once it can be, though neither its time nor its size tells.
func TestFileComesBack(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	name, then := filepath.Join(dir, "secret"), time.Now().Add(-time.Hour)
	put := func(name, text string) {
		t.Helper()
		if err := errors.Join(os.WriteFile(name, []byte(text), 0o600), os.Chtimes(name, then, then)); err != nil {
			t.Fatal(err)
		}
	}
	put(name, "one")
	var log bytes.Buffer
	now := time.Now()
	parse := func(text []byte) (string, error) { return string(text), nil }
	f, err := WatchFile(name, parse, slog.New(slog.NewTextHandler(&log, nil)), func() time.Time { return now })
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		what string
		do   func() error
		want string
		told int
	}{
		{"another of the same time and size", func() error {
			put(name+".new", "two")
			return os.Rename(name+".new", name)
		}, "two", 0},
		{"away", func() error { return os.Rename(name, name+".away") }, "two", 1},
		{"back", func() error { return os.Rename(name+".away", name) }, "two", 1},
		{"a folder", func() error { return errors.Join(os.Remove(name), os.Mkdir(name, 0o700)) }, "two", 2},
		{"a link", func() error {
			put(filepath.Join(dir, "three"), "333")
			return errors.Join(os.Remove(name), os.Symlink("three", name))
		}, "333", 2},
		{"a link elsewhere", func() error {
			put(filepath.Join(dir, "four"), "444")
			return errors.Join(os.Symlink("four", name+".new"), os.Rename(name+".new", name))
		}, "444", 2},
	} {
		if err := step.do(); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			now = now.Add(checkEvery)
			if got := f.Current(); got != step.want {
				t.Errorf("%s: it is %s, want %s", step.what, got, step.want)
			}
		}
		if n := strings.Count(log.String(), "not usable"); n != step.told {
			t.Errorf("%s: told %d times, want %d:\n%s", step.what, n, step.told, log.String())
		}
	}
}

func TestFile(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "secret")
	parse := func(text []byte) (string, error) {
		if len(text) == 0 {
			return "", errors.New("is empty")
		}
		return string(text), nil
	}
	now := time.Now()
	write := func(text string, age time.Duration) {
		t.Helper()
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(name, now.Add(-age), now.Add(-age)); err != nil {
			t.Fatal(err)
		}
	}
	var log bytes.Buffer
	clock := func() time.Time { return now }
	logger := slog.New(slog.NewTextHandler(&log, nil))
	if _, err := WatchFile(name, parse, logger, clock); err == nil || !strings.Contains(err.Error(), "cannot be read") {
		t.Errorf("a missing file gave %v", err)
	}
	write("one", time.Hour)
	f, err := WatchFile(name, parse, logger, clock)
	if err != nil {
		t.Fatal(err)
	}
	write("two", time.Minute)
	if got := f.Current(); got != "one" {
		t.Errorf("looked within a second: %s", got)
	}
	now = now.Add(checkEvery)
	if got := f.Current(); got != "two" {
		t.Errorf("after the change: %s", got)
	}
	// A clock that is set back by a day must not keep the file from being read for a day.
	now = now.Add(-24 * time.Hour)
	write("three", 0)
	if got := f.Current(); got != "three" {
		t.Errorf("after the clock was set back: %s", got)
	}
	write("two", time.Second)
	now = now.Add(checkEvery)
	if got := f.Current(); got != "two" {
		t.Errorf("after another change: %s", got)
	}
	write("", 0)
	for range 3 {
		now = now.Add(checkEvery)
		if got := f.Current(); got != "two" {
			t.Errorf("after the file became empty: %s", got)
		}
	}
	if n := strings.Count(log.String(), "not usable"); n != 1 || strings.Contains(log.String(), "two") {
		t.Errorf("%d complaints: %s", n, log.String())
	}
}

func FuzzScrub(f *testing.F) {
	f.Add("https://hooks.slack.com/services/T0000/B0000/token", "x/services/T0000/B0000/tok", 1020)
	f.Fuzz(func(t *testing.T, text, answer string, pad int) {
		target, err := ParseTarget(text, &netguard.Guard{})
		if err != nil {
			return
		}
		body := strings.Repeat("-", int(uint(pad)%2000)) + answer + target.URL().Path
		kept, _ := target.ReadResponse(strings.NewReader(body))
		if len(kept) > MaxResponseBody || !utf8.ValidString(kept) {
			t.Errorf("kept %d bytes", len(kept))
		}
	})
}

func ExampleTarget_Redact() {
	g, _ := netguard.New(nil)
	target, _ := ParseTarget("https://hooks.slack.com/services/T0000/B0000/abcdef", g)
	fmt.Println(target.Host(), "says:", target.Redact("no service at /services/T0000/B0000/abcdef"))
	// Output: hooks.slack.com says: no service at (redacted)
}
