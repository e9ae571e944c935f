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

	"github.com/hubrelay/hubrelay/relay/internal/httpserver"
	"github.com/hubrelay/hubrelay/relay/internal/metrics"
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
	health := NewHealth(HealthOptions{Metrics: metrics.New("v0"), Listen: "127.0.0.1:9090"})
	health.SetReady(func(context.Context) error { return nil })
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
		{admin, "GET", "/", 200, "<html"},
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
	h := NewHealth(HealthOptions{})
	if w := get(h, "GET", "/readyz", ""); w.Code != 503 || !strings.Contains(w.Body.String(), "starting") {
		t.Errorf("starting: got %d %s", w.Code, w.Body)
	}
	h.SetReady(func(context.Context) error { return err })
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
	h := NewHealth(HealthOptions{ReadyTimeout: 10 * time.Millisecond})
	h.SetReady(func(context.Context) error { <-leave; return nil })
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
