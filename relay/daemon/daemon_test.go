package daemon

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/client"
	"github.com/hubrelay/hubrelay/relay/internal/config"
)

const (
	testKey  = "test-key-0123456789abcdef"
	patience = testkit.Patience
)

// memorySink records deliveries.
type memorySink struct {
	mu     sync.Mutex
	got    []string
	more   chan struct{}
	closed int
}

func (s *memorySink) Deliver(_ context.Context, d relay.Delivery) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.got = append(s.got, d.ID)
	s.more <- struct{}{}
	return nil
}

func (s *memorySink) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed++
	return nil
}

type noConfig struct {
	Broken bool `koanf:"broken" doc:"Whether the sink cannot be opened."`
}

func (*noConfig) Check(context.Context, relay.CheckEnv) relay.Report { return relay.Report{} }

var errBroken = errors.New("broken")

// kind returns a kind that opens s, or fails if the configuration requests it.
func (s *memorySink) kind() relay.SinkKind {
	return relay.SinkKind{
		Type: "memory", Config: func() relay.Config { return &noConfig{} },
		Open: func(_ relay.SinkSettings, c relay.Config) (relay.Sink, error) {
			if own, ok := c.(*noConfig); !ok || own.Broken {
				return nil, errBroken
			}
			return s, nil
		},
	}
}

// loadConfig returns a configuration with the test key and the given sinks.
func loadConfig(t *testing.T, kind relay.SinkKind, server, sinks string) *config.Config {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(dir, "hubrelay.yaml")
	text := fmt.Sprintf(`server: {listen: %q, shutdown_grace: 5s}
health: {listen: "127.0.0.1:0"}
redis: {url: "memory:", data_dir: %q}
auth: {keys: [{name: ops, key: %s, account_id: "*", hubs: ["*"], capabilities: [notifications-publish]}]}
sinks: {%s}
`, server, dir, testKey, sinks)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, err := config.Load(file, nil, config.Kinds{Sinks: []relay.SinkKind{kind}})
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

// TestDaemon_RunAndStop runs a complete daemon in this process. After Run nothing remains.
func TestDaemon_RunAndStop(t *testing.T) {
	defer goleak.VerifyNone(t)
	defer http.DefaultTransport.(*http.Transport).CloseIdleConnections() //nolint:errcheck // it is one
	sink := &memorySink{more: make(chan struct{}, 100)}
	var log bytes.Buffer
	ready := make(chan Addresses, 2)
	a, err := New(loadConfig(t, sink.kind(), "127.0.0.1:0", `one: {type: memory, topics: ["job.*"]}`), Options{
		Version: "v0", Log: slog.New(slog.NewJSONHandler(&log, nil)), Sinks: []relay.SinkKind{sink.kind()},
		Ready: func(at Addresses) { ready <- at },
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx) }()
	at := receive(t, ready, "the daemon to be ready")

	c := client.Client{URL: "http://" + at.Public.String(), Key: testKey, Hub: "hub-1"}
	connected, seen := make(chan struct{}), make(chan string, 10)
	listening, hangUp := context.WithCancel(ctx)
	var listener sync.WaitGroup
	listener.Go(func() {
		for n, err := range c.Listen(listening, client.ListenOptions{OnConnected: sync.OnceFunc(func() { close(connected) })}) {
			if err != nil {
				t.Errorf("listen: %v", err)
				return
			}
			seen <- n.Topic
		}
	})
	receive(t, connected, "the listener to be connected")
	ids, err := c.Publish(ctx, "application/x-ndjson", "",
		[]byte(`{"topic":"job.created"}`+"\n"+`{"topic":"image.updated"}`+"\n"+`{"topic":"job.state.changed"}`))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"job.created", "image.updated", "job.state.changed"} {
		if got := receive(t, seen, want); got != want {
			t.Errorf("listener got %s, want %s", got, want)
		}
	}
	for range 2 {
		receive(t, sink.more, "a delivery")
	}
	hangUp()
	listener.Wait()
	stop()
	if err := receive(t, ended, "Run to return"); err != nil {
		t.Errorf("Run returned %v", err)
	}
	slices.Sort(sink.got)
	if want := []string{ids[0], ids[2]}; !slices.Equal(sink.got, want) {
		t.Errorf("sink got %v, want %v", sink.got, want)
	}
	if sink.closed == 0 || len(ready) != 0 {
		t.Errorf("the sink was closed %d times, Ready called again %d times", sink.closed, len(ready))
	}
	if strings.Contains(log.String(), testKey) || strings.Contains(log.String(), `"level":"ERROR"`) {
		t.Errorf("got log\n%s", log.String())
	}
}

func receive[T any](t *testing.T, from <-chan T, what string) T {
	t.Helper()
	select {
	case v := <-from:
		return v
	case <-time.After(patience):
		t.Fatalf("timeout after %s waiting for %s", patience, what)
		panic("unreachable")
	}
}

// TestDaemon_RunFails checks that a failed start stops everything.
func TestDaemon_RunFails(t *testing.T) {
	defer goleak.VerifyNone(t)
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = taken.Close() }()
	sink := &memorySink{}
	a, err := New(loadConfig(t, sink.kind(), taken.Addr().String(), `one: {type: memory}`), Options{
		Log: testkit.Log(t), Sinks: []relay.SinkKind{sink.kind()},
		Ready: func(Addresses) { t.Error("Ready was called") },
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "server.listen") {
		t.Errorf("Run returned %v", err)
	}
	if sink.closed == 0 {
		t.Error("the sink was not closed")
	}
}

func TestNew_ClosesSinksOnError(t *testing.T) {
	t.Parallel()
	sink := &memorySink{}
	settings := Options{Log: testkit.Log(t), Sinks: []relay.SinkKind{sink.kind()}}
	_, err := New(
		loadConfig(t, sink.kind(), "127.0.0.1:0",
			`a: {type: memory}, b: {type: memory, broken: true}, c: {type: memory}`),
		settings,
	)
	if !errors.Is(err, errBroken) || !strings.Contains(err.Error(), "sink b") {
		t.Errorf("sink that fails to open: got %v", err)
	}
	if sink.closed != 1 {
		t.Errorf("the first sink was closed %d times, want 1", sink.closed)
	}
	settings.Sinks = nil
	if _, err := New(loadConfig(t, sink.kind(), "127.0.0.1:0", `a: {type: memory}`), settings); err == nil ||
		!strings.Contains(err.Error(), "memory") {
		t.Errorf("unknown type: got %v", err)
	}
}
