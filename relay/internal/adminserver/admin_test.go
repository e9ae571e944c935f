package adminserver

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/hubrelay/hubrelay/internal/adminapi"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/httpserver"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func get(h http.Handler, method, path, host string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	r := httptest.NewRequest(method, path, nil)
	r.Host = host
	h.ServeHTTP(w, r)
	return w
}

// newOpen returns a handler whose callers have all permissions, as on the unix socket.
func newOpen(o Options) *Admin {
	o.Authenticator = new(SocketPeer)
	return New(o)
}

func TestHandlers_Pages(t *testing.T) {
	health := NewHealth(HealthOptions{Metrics: NewMetrics("v0"), Listen: "127.0.0.1:9090"})
	admin := newOpen(Options{})
	for _, tt := range []struct {
		handler      http.Handler
		method, path string
		status       int
		contains     string
	}{
		{health, "GET", "/", 200, "/metrics"},
		{health, "GET", "/healthz", 200, `{"status":"alive"}`},
		{health, "GET", "/readyz", 200, `{"status":"ready"}`},
		{health, "HEAD", "/healthz", 200, ""},
		{health, "GET", "/metrics", 200, `hubrelay_build_info{version="v0"} 1`},
		{health, "POST", "/healthz", 405, `"code":"405.method"`},
		{health, "GET", "/nothing", 404, `"code":"404.uri"`},
		{health, "GET", "/debug/pprof/", 404, `"code":"404.uri"`},
		{health, "GET", "/api/sinks", 404, `"code":"404.uri"`},
		{admin, "GET", "/", 200, "/api/sinks"},
		{admin, "GET", "/debug/pprof/", 200, "goroutine"},
		{admin, "GET", "/debug/pprof/goroutine?debug=1", 200, "goroutine profile"},
		{admin, "GET", "/nothing", 404, `"code":"404.uri"`},
	} {
		w := get(tt.handler, tt.method, tt.path, "127.0.0.1:9090")
		if w.Code != tt.status || !strings.Contains(w.Body.String(), tt.contains) {
			t.Errorf("%s %s: got %d %.200s, want %d %s", tt.method, tt.path, w.Code, w.Body, tt.status, tt.contains)
		}
	}
}

var hosts = map[string]int{
	"127.0.0.1:9090": 200, "10.1.2.3": 200, "[::1]:9090": 200, "[::1]": 200, "localhost:1": 200, "LOCALHOST": 200,
	"":              200,
	"hubrelay:9090": 200, "localhost.": 200, "evil.test.": 403, "evil..": 403,
	"evil.test": 403, "evil.test:9090": 403, "127.0.0.1.evil.test": 403, "localhost.evil.test": 403,
}

func TestAdmin_ChecksHost(t *testing.T) {
	a := newOpen(Options{Listen: "Relay-Admin.internal:9090"})
	for host, want := range hosts {
		for _, path := range []string{"/", "/debug/pprof/cmdline"} {
			if w := get(a, "GET", path, host); w.Code != want {
				t.Errorf("%s with Host %q: got %d, want %d", path, host, w.Code, want)
			}
		}
	}
	if w := get(a, "GET", "/", "relay-admin.internal:9090"); w.Code != 200 {
		t.Errorf("the configured name: got %d, want 200", w.Code)
	}
}

// A page on the same machine could point its name at a loopback address. Prometheus uses names on other addresses.
func TestHealth_ChecksHostOnLoopback(t *testing.T) {
	loopback, public := NewHealth(HealthOptions{Listen: "127.0.0.1:9090"}), NewHealth(HealthOptions{Listen: ":9090"})
	for host, want := range hosts {
		if w := get(loopback, "GET", "/healthz", host); w.Code != want {
			t.Errorf("loopback with Host %q: got %d, want %d", host, w.Code, want)
		}
		if w := get(public, "GET", "/healthz", host); w.Code != 200 {
			t.Errorf("public with Host %q: got %d, want 200", host, w.Code)
		}
	}
}

func TestHealth_Ready(t *testing.T) {
	var err error
	h := NewHealth(HealthOptions{Ready: func(context.Context) error { return err }})
	if w := get(h, "GET", "/readyz", ""); w.Code != 200 {
		t.Errorf("got %d %s", w.Code, w.Body)
	}
	err = errors.New("redis does not respond")
	w := get(h, "GET", "/readyz", "")
	var body struct{ Status, Reason string }
	if e := json.Unmarshal(w.Body.Bytes(), &body); e != nil || w.Code != 503 || body.Reason != "redis does not respond" {
		t.Errorf("got %d %s", w.Code, w.Body)
	}
	err = nil
	h.Drain()
	if w := get(h, "GET", "/readyz", ""); w.Code != 503 || !strings.Contains(w.Body.String(), "stopping") {
		t.Errorf("draining: got %d %s", w.Code, w.Body)
	}
	if w := get(h, "GET", "/healthz", ""); w.Code != 200 {
		t.Errorf("healthz while draining: got %d, want 200", w.Code)
	}
}

func TestHealth_ReadyHasTimeout(t *testing.T) {
	leave := make(chan struct{})
	h := NewHealth(
		HealthOptions{ReadyTimeout: 10 * time.Millisecond, Ready: func(context.Context) error { <-leave; return nil }},
	)
	w := get(h, "GET", "/readyz", "")
	close(leave)
	if w.Code != 503 || !strings.Contains(w.Body.String(), "10ms") {
		t.Errorf("got %d %s", w.Code, w.Body)
	}
}

func TestAdmin_ProfileExceedsWriteTimeout(t *testing.T) {
	s, err := httpserver.Listen(httpserver.Options{
		Addr: "127.0.0.1:0", Handler: newOpen(Options{}), WriteTimeout: 100 * time.Millisecond,
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	transport := &http.Transport{}
	res, err := (&http.Client{Transport: transport}).Get(
		"http://" + s.Addr().String() + "/debug/pprof/profile?seconds=1",
	)
	if err != nil {
		t.Error(err)
	} else {
		if res.StatusCode != 200 {
			t.Errorf("status %d", res.StatusCode)
		}
		_ = res.Body.Close()
	}
	transport.CloseIdleConnections()
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// All time series of a configured sink exist before the first event, because rate() ignores the first value.
func TestMetrics_InitSink(t *testing.T) {
	m := NewMetrics("v1.2.3")
	m.InitSink("billing")
	m.Batched("billing", 0)
	text := get(m.Handler(), "GET", "/metrics", "").Body.String()
	for _, want := range []string{
		`enqueued_total{`, `dropped_total{`, `retries_total{`, `dead_letters_total{`, `batched_events_total{`,
		`attempts_total{result="delivered",`, `attempts_total{result="dns",`, `attempts_total{result="other",`,
		`attempt_duration_seconds_count{`, `waiting{`, `retrying{`, `dead{`, `oldest_age_seconds{`,
		`last_success_timestamp_seconds{`, `in_flight{`,
	} {
		if !strings.Contains(text, "hubrelay_sink_"+want+`sink="billing"} 0`+"\n") {
			t.Errorf("missing: %s", want)
		}
	}
}

func TestMetrics(t *testing.T) {
	m := NewMetrics("v1.2.3")
	m.Accepted("container.instance.error")
	m.Accepted("container.created")
	m.RequestRejected(relay.CodeTooLarge)
	m.InboxStored(5)
	m.InboxRepeated(1)
	m.InboxQuarantined(2)
	m.Connected()
	m.Connected()
	m.Disconnected("slow")
	m.Queued(7, 700)
	m.Enqueued("billing", 3)
	m.TrimmedBeforeEnqueue(0, 6)
	m.Gap()
	m.Dropped("billing", 4)
	m.InitSink("billing")
	m.Attempted("billing", 2, "tls", 20*time.Millisecond)
	m.DeadLettered("billing", "permanent")
	m.RetryLost("billing")
	m.SetStateFunc("billing", func() adminapi.SinkState { return adminapi.SinkDisabled })
	m.Backlog("billing", 12, 3, 1)
	m.Oldest("billing", 90*time.Second)
	m.LastSuccess("billing", time.Unix(1732153000, 5e8))
	m.SetInFlightFunc("billing", func() int64 { return 5 })
	m.RedisUp(true)
	m.RedisRestarted()
	text := get(m.Handler(), "GET", "/metrics", "").Body.String()
	for _, want := range []string{
		`hubrelay_events_accepted_total{family="container"} 2`,
		`hubrelay_requests_rejected_total{code="413.too-large"} 1`,
		`hubrelay_inbox_entries_total{outcome="stored"} 5`,
		`hubrelay_inbox_entries_total{outcome="repeated"} 1`,
		`hubrelay_inbox_entries_total{outcome="quarantined"} 2`,
		`hubrelay_stream_clients 1`,
		`hubrelay_stream_clients_closed_total{reason="slow"} 1`,
		`hubrelay_stream_clients_closed_total{reason="silent"} 0`,
		`hubrelay_stream_frames_total 7`,
		`hubrelay_stream_bytes_total 700`,
		`hubrelay_sink_enqueued_total{sink="billing"} 3`,
		`hubrelay_log_events_missed_total 6`,
		`hubrelay_sink_retries_total{sink="billing"} 1`,
		`hubrelay_retries_lost_total 1`,
		`hubrelay_sink_state{sink="billing",state="disabled"} 1`,
		`hubrelay_sink_state{sink="billing",state="active"} 0`,
		`hubrelay_log_gaps_total 1`,
		`hubrelay_sink_dropped_total{sink="billing"} 4`,
		`hubrelay_sink_attempt_duration_seconds_bucket{sink="billing",le="0.025"} 1`,
		`hubrelay_sink_attempts_total{result="tls",sink="billing"} 1`,
		`hubrelay_sink_attempts_total{result="delivered",sink="billing"} 0`,
		`hubrelay_sink_dead_letters_total{sink="billing"} 1`,
		`hubrelay_sink_waiting{sink="billing"} 12`,
		`hubrelay_sink_retrying{sink="billing"} 3`,
		`hubrelay_sink_dead{sink="billing"} 1`,
		`hubrelay_sink_oldest_age_seconds{sink="billing"} 90`,
		`hubrelay_sink_last_success_timestamp_seconds{sink="billing"} 1.7321530005e+09`,
		`hubrelay_sink_in_flight{sink="billing"} 5`,
		`hubrelay_redis_up 1`,
		`hubrelay_embedded_redis_restarts_total 1`,
		`hubrelay_build_info{version="v1.2.3"} 1`,
	} {
		if !strings.Contains(text, want+"\n") {
			t.Errorf("missing: %s", want)
		}
	}
	if n := strings.Count(text, `sink="billing"`); n > 40 {
		t.Errorf("a sink has %d series, want at most 40", n)
	}
	problems, err := testutil.GatherAndLint(m.registry)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems { // the rules of `promtool check metrics`
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
	m.RemoveSink("billing")
	if text := get(m.Handler(), "GET", "/metrics", "").Body.String(); strings.Contains(text, "billing") {
		t.Error("a removed sink has series")
	}
	for line := range strings.Lines(text) {
		if name, ok := strings.CutPrefix(line, "# TYPE "); ok &&
			!strings.HasPrefix(name, "hubrelay_") && !strings.HasPrefix(name, "go_") &&
			!strings.HasPrefix(name, "process_") {
			t.Errorf("unexpected metric: %s", line)
		}
	}
}
