package slack

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	slackgo "github.com/slack-go/slack"
	"go.uber.org/goleak"

	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/sinks/sinktest"
)

func TestMain(m *testing.M) {
	testkit.RunParallel(8) // the tests wait most of the time
	goleak.VerifyTestMain(m)
}

const hookPath = "/services/T0s3cret1/B0s3cret2/s3crettoken"

func settings(log io.Writer) relay.SinkSettings {
	return relay.SinkSettings{Name: "test", Log: slog.New(slog.NewTextHandler(log, nil)), UserAgent: "hubrelay/test"}
}

func openTest(t testing.TB, c *Config) *Sink {
	t.Helper()
	c.AllowCIDRs = append(c.AllowCIDRs, "127.0.0.0/8", "::1")
	s, err := Kind().Open(settings(io.Discard), c)
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

// far answers as Slack does in each of the suite's cases.
type far struct {
	behavior sinktest.Behavior
	mu       sync.Mutex
	ids      []string
	done     chan struct{}
}

func (f *far) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	var m slackgo.WebhookMessage
	if err := json.Unmarshal(body, &m); err != nil {
		http.Error(w, "invalid_payload", http.StatusBadRequest)
		return
	}
	f.mu.Lock()
	id := regexp.MustCompile("Delivery `([0-9a-f]+)`").FindStringSubmatch(string(body))
	if id == nil {
		id = regexp.MustCompile("Event `([0-9a-f]+)`").FindStringSubmatch(string(body))
	}
	f.ids = append(f.ids, id[1])
	f.mu.Unlock()
	switch f.behavior {
	case sinktest.Fail:
		http.Error(w, "rollup_error", http.StatusInternalServerError)
	case sinktest.Throttle:
		w.Header().Set("Retry-After", "30")
		http.Error(w, "rate_limited", http.StatusTooManyRequests)
	case sinktest.Reject:
		http.Error(w, "invalid_payload", http.StatusBadRequest)
	case sinktest.Gone:
		http.Error(w, "no_service "+hookPath, http.StatusNotFound)
	case sinktest.Hang:
		select {
		case <-f.done:
		case <-r.Context().Done():
		}
	default:
		_, _ = io.WriteString(w, "ok")
	}
}

func TestConformance(t *testing.T) {
	t.Parallel()
	sinktest.Run(t, sinktest.Harness{
		RetryAfter: 30 * time.Second,
		Secrets:    []string{"s3cret", hookPath},
		Open: func(t *testing.T, b sinktest.Behavior) (relay.Sink, func() []string) {
			f := &far{behavior: b, done: make(chan struct{})}
			srv := httptest.NewServer(f)
			t.Cleanup(func() { close(f.done); srv.Close() })
			if b == sinktest.Unreachable {
				_ = srv.Listener.Close()
			}
			s := openTest(t, &Config{URL: srv.URL + hookPath})
			return s, func() []string { f.mu.Lock(); defer f.mu.Unlock(); return append([]string(nil), f.ids...) }
		},
	})
}

func TestRequest(t *testing.T) {
	t.Parallel()
	got := make(chan string, 1)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got <- fmt.Sprint(r.Method, " ", r.RequestURI, " ", r.Header.Get("Content-Type"), " ", r.UserAgent())
		_, _ = io.WriteString(w, "ok\n")
	}))
	defer srv.Close()
	if err := openTest(t, &Config{URL: srv.URL + hookPath}).Deliver(t.Context(), sinktest.Sample("a1")); err != nil {
		t.Fatal(err)
	}
	if g, want := <-got, "POST "+hookPath+" application/json hubrelay/test"; g != want {
		t.Errorf("request %s, want %s", g, want)
	}
}

// Explain shows what Deliver sends, except the address.
func TestExplain(t *testing.T) {
	t.Parallel()
	got := make(chan string, 1)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		got <- fmt.Sprint(r.Method, r.Host, r.Header.Get("Content-Type"), r.UserAgent(), r.ContentLength, string(body))
		_, _ = io.WriteString(w, "ok")
	}))
	defer srv.Close()
	s := openTest(t, &Config{URL: srv.URL + hookPath})
	var x relay.Previewer = s
	e, err := x.Preview(t.Context(), sinktest.Sample("a1"))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Deliver(t.Context(), sinktest.Sample("a1")); err != nil {
		t.Fatal(err)
	}
	values := map[string]string{}
	for _, h := range e.Headers {
		values[h.Name] = h.Value
	}
	want := e.Method + values["Host"] + values["Content-Type"] + values["User-Agent"] + values["Content-Length"] +
		string(e.Payload)
	if sent := <-got; sent != want {
		t.Errorf("sent %s, explained %s", sent, want)
	}
	if e.Target != srv.URL+"/…" || strings.Contains(fmt.Sprint(e), "s3cret") {
		t.Errorf("explained %+v", e)
	}
}

func TestAnswers(t *testing.T) {
	t.Parallel()
	var status int
	var body, after string
	var followed bool
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		followed = followed || r.URL.Path == "/elsewhere"
		_, _ = io.Copy(io.Discard, r.Body)
		if after != "" {
			w.Header().Set("Retry-After", after)
		}
		w.Header().Set("Location", "/elsewhere")
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}))
	defer srv.Close()
	s := openTest(t, &Config{URL: srv.URL + hookPath})
	for _, c := range []struct {
		status      int
		body, after string
		want        relay.Outcome
		wait        time.Duration
	}{
		{200, "ok", "", relay.OutcomeDelivered, 0},
		{200, "", "", relay.OutcomeRetry, 0},
		{200, "OK then", "", relay.OutcomeRetry, 0},
		{200, "<html>log in</html>", "", relay.OutcomeRetry, 0},
		{200, "ok" + strings.Repeat(" ", 2000), "", relay.OutcomeRetry, 0},
		{201, "ok", "", relay.OutcomeRetry, 0},
		{204, "", "", relay.OutcomeRetry, 0},
		{301, "", "", relay.OutcomeRetry, 0},
		{302, "ok", "", relay.OutcomeRetry, 0},
		{307, "", "", relay.OutcomeRetry, 0},
		{400, "invalid_payload", "", relay.OutcomePermanent, 0},
		{400, "no_text", "", relay.OutcomePermanent, 0},
		{400, "too_many_attachments", "", relay.OutcomePermanent, 0},
		{400, "who knows", "", relay.OutcomePermanent, 0},
		{400, "user_not_found", "", relay.OutcomeGone, 0},
		{403, "invalid_token", "", relay.OutcomeGone, 0},
		{403, "action_prohibited", "", relay.OutcomeGone, 0},
		{403, "forbidden", "", relay.OutcomePermanent, 0},
		{404, "no_service", "", relay.OutcomeGone, 0},
		{404, "channel_not_found\n", "", relay.OutcomeGone, 0},
		{404, "not found", "", relay.OutcomeGone, 0},
		{404, "no_team", "", relay.OutcomeGone, 0},
		{404, "invalid_payload", "", relay.OutcomePermanent, 0},
		{408, "", "", relay.OutcomeRetry, 0},
		{410, "channel_is_archived", "", relay.OutcomeGone, 0},
		{410, "", "", relay.OutcomeGone, 0},
		{413, "", "", relay.OutcomePermanent, 0},
		{429, "rate_limited", "7", relay.OutcomeRetry, 7 * time.Second},
		{429, "no_service", "", relay.OutcomeRetry, 0},
		{500, "rollup_error", "", relay.OutcomeRetry, 0},
		{500, "no_service", "", relay.OutcomeRetry, 0},
		{503, "", "60", relay.OutcomeRetry, time.Minute},
	} {
		status, body, after = c.status, c.body, c.after
		err := s.Deliver(t.Context(), sinktest.Sample("a1"))
		got, wait := relay.Classify(err)
		if got != c.want || wait != c.wait {
			t.Errorf("%d %q: %s after %s (%v), want %s after %s", c.status, c.body, got, wait, err, c.want, c.wait)
		}
		var answer *relay.ResponseError
		if c.want != relay.OutcomeDelivered &&
			(!errors.As(err, &answer) || answer.Status != c.status || len(answer.Body) > 1<<10) {
			t.Errorf("%d: the error %v does not hold the answer", c.status, err)
		}
	}
	if followed {
		t.Error("a redirect was followed")
	}
}

// An answer that repeats the address, even in part, does not reveal it.
func TestAnswerThatRepeatsTheURL(t *testing.T) {
	t.Parallel()
	for _, body := range []string{
		"cannot POST " + hookPath, strings.Repeat("x", 1015) + "s3crettoken", strings.Repeat(hookPath+" ", 100),
		"token=s3crettoken in B0s3cret2",
	} {
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusBadGateway)
			_, _ = io.WriteString(w, body)
		}))
		err := openTest(t, &Config{URL: srv.URL + hookPath}).Deliver(t.Context(), sinktest.Sample("a1"))
		srv.Close()
		var answer *relay.ResponseError
		if !errors.As(err, &answer) || strings.Contains(answer.Body+err.Error(), "s3c") || answer.Body == "" {
			t.Errorf("%.40s…: %v, %+v", body, err, answer)
		}
	}
}

// An answer that never ends costs its own attempt only.
func TestAnswersThatDoNotEnd(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]string{
		"half a body":    "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nok",
		"half a header":  "HTTP/1.1 200 OK\r\nX: ",
		"other protocol": "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n",
		"nonsense":       "HTTP/1.1 s3crettoken\r\n\r\n",
		"a huge body":    "HTTP/1.1 200 OK\r\nContent-Length: 100000000\r\n\r\n" + strings.Repeat("ok", 100_000),
	} {
		t.Run(name, func(t *testing.T) {
			s := openTest(t, &Config{URL: rawServer(t, answer) + hookPath})
			ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
			defer cancel()
			err := s.Deliver(ctx, sinktest.Sample("a1")) // the server keeps the connection until the test ends
			if got, _ := relay.Classify(err); got != relay.OutcomeRetry || strings.Contains(err.Error(), "s3cret") {
				t.Errorf("got %v", err)
			}
		})
	}
}

// rawServer answers every connection with the text and keeps it open.
func rawServer(t *testing.T, answer string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	stop := make(chan struct{})
	t.Cleanup(func() { close(stop); _ = l.Close(); wg.Wait() })
	wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer func() { _ = conn.Close() }()
				_, _ = conn.Read(make([]byte, 64<<10))
				_, _ = io.WriteString(conn, answer)
				<-stop
			})
		}
	})
	return "http://" + l.Addr().String()
}

// A name that passes the configuration's check is still checked when it is dialed, and no proxy is used.
func TestGuardAtDialTime(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	t.Setenv("HTTP_PROXY", "http://"+l.Addr().String())
	_, port, _ := net.SplitHostPort(l.Addr().String())
	// ::1 alone is allowed, so localhost passes the check; what it resolves to here does not.
	s, err := Kind().Open(settings(io.Discard), &Config{
		URL: "http://localhost:" + port + hookPath, AllowCIDRs: []string{"::1"},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	if err = s.Deliver(t.Context(), sinktest.Sample("a1")); err == nil || strings.Contains(err.Error(), "s3cret") {
		t.Errorf("dialling inwards gave %v", err)
	}
}

func TestURLFileIsReadAgain(t *testing.T) {
	t.Parallel()
	paths := make(chan string, 1)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		paths <- r.URL.Path
		_, _ = io.WriteString(w, "ok")
	}))
	defer srv.Close()
	name := filepath.Join(t.TempDir(), "slack")
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
	write(srv.URL+"/services/s3cret1\n", time.Hour)
	now := time.Now()
	var log bytes.Buffer
	s, err := open(settings(&log), &Config{URLFile: name, AllowCIDRs: []string{"127.0.0.0/8"}},
		func() time.Time { return now })
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	posted := func() string {
		t.Helper()
		if err := s.Deliver(t.Context(), sinktest.Sample("a1")); err != nil {
			t.Fatal(err)
		}
		return <-paths
	}
	for i, c := range []struct{ text, want string }{
		{srv.URL + "/services/s3cret1\n", "/services/s3cret1"},
		{srv.URL + "/services/s3cret2\n", "/services/s3cret2"},
		{"", "/services/s3cret2"},
		{"http://10.0.0.1/services/s3cret3", "/services/s3cret2"},
		{"s3cret4 s3cret5", "/services/s3cret2"},
		{srv.URL + "/services/s3cret6", "/services/s3cret6"},
	} {
		write(c.text, time.Hour-time.Duration(i)*time.Minute)
		now = now.Add(2 * time.Second)
		if got := posted(); got != c.want {
			t.Errorf("step %d: posted to %s, want %s", i, got, c.want)
		}
	}
	if err := os.Remove(name); err != nil {
		t.Fatal(err)
	}
	now = now.Add(2 * time.Second)
	if got := posted(); got != "/services/s3cret6" {
		t.Errorf("without the file: posted to %s", got)
	}
	if strings.Contains(log.String(), "s3cret") || !strings.Contains(log.String(), "file reload failed") ||
		!strings.Contains(log.String(), "file reloaded") {
		t.Errorf("log %s", log.String())
	}
}
