package host

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	goplugin "github.com/hashicorp/go-plugin"
	"go.uber.org/goleak"
	"google.golang.org/grpc"

	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/plugins/internal/wire"
	sinkv1 "github.com/hubrelay/hubrelay/plugins/proto/sink/v1"
	"github.com/hubrelay/hubrelay/relay"
)

// The test binary runs itself as the plugin. Its first argument selects the behavior.
func TestMain(m *testing.M) {
	if os.Getenv(wire.CookieName) == "" {
		testkit.RunParallel(8) // the tests wait most of the time
		goleak.VerifyTestMain(m)
		return
	}
	if err := runPlugin(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func runPlugin(mode string) error {
	switch mode {
	case "sdk":
		return runSDK()
	case "driver":
		return runDriver()
	case "garbage":
		fmt.Println("Hello, I am a plugin!")
		time.Sleep(time.Minute)
	case "silent":
		time.Sleep(time.Minute)
	case "closed":
		_ = os.Stdout.Close()
		time.Sleep(time.Minute)
	case "exit":
		fmt.Fprintln(os.Stderr, "no database")
		os.Exit(3)
	case "repairable": // exits until a file exists
		if _, err := os.Stat(os.Args[2]); err != nil {
			os.Exit(3)
		}
		return runSDK()
	case "version":
		fmt.Println("1|7|unix|/tmp/x|grpc")
		time.Sleep(time.Minute)
	case "elsewhere":
		fmt.Println("1|1|unix|/run/docker.sock|grpc")
		time.Sleep(time.Minute)
	case "odd":
		serveOdd()
	case "strange":
		serveStrange()
	case "environment":
		fmt.Fprintln(os.Stderr, "environment:", os.Environ())
		os.Exit(1)
	case "parent":
		return runParent()
	}
	return nil
}

// strange acknowledges what it does not have, twice, and names no credit but the first ones.
type strange struct {
	sinkv1.UnimplementedSinkServer
	goplugin.NetRPCUnsupportedPlugin
}

func (s strange) GRPCServer(_ *goplugin.GRPCBroker, server *grpc.Server) error {
	sinkv1.RegisterSinkServer(server, s)
	return nil
}

func (strange) GRPCClient(context.Context, *goplugin.GRPCBroker, *grpc.ClientConn) (any, error) {
	return nil, errors.New("no")
}

func (strange) Configure(context.Context, *sinkv1.ConfigureRequest) (*sinkv1.ConfigureResponse, error) {
	return &sinkv1.ConfigureResponse{}, nil
}

func (strange) Deliver(stream grpc.BidiStreamingServer[sinkv1.DeliverRequest, sinkv1.DeliverResponse]) error {
	if err := stream.Send(&sinkv1.DeliverResponse{Credits: 1 << 31}); err != nil {
		return err
	}
	for {
		r, err := stream.Recv()
		if err != nil {
			return err
		}
		for _, d := range r.GetDeliveries() {
			ok := func(id string, attempt uint32) *sinkv1.Ack {
				return &sinkv1.Ack{DeliveryId: id, Attempt: attempt, Outcome: sinkv1.Outcome_OUTCOME_OK}
			}
			wrong := &sinkv1.Ack{
				DeliveryId: d.GetId(), Attempt: d.GetAttempt(), Outcome: sinkv1.Outcome_OUTCOME_PERMANENT,
				Error: "the one that counts",
			}
			if d.GetNotifications()[0].GetTopic() == "large" {
				wrong.Error = strings.Repeat("x", wire.MaxAckMessage)
			}
			if d.GetNotifications()[0].GetTopic() == "unknown" {
				flood := &sinkv1.DeliverResponse{Acks: slices.Repeat([]*sinkv1.Ack{ok("unknown", 1)}, 1000)}
				for range maxUnknownAcks/1000 + 1 {
					if err := stream.Send(flood); err != nil {
						return err
					}
				}
				continue
			}
			err := stream.Send(&sinkv1.DeliverResponse{Acks: []*sinkv1.Ack{
				ok("unknown", 1), ok(d.GetId(), d.GetAttempt()+1), wrong, ok(d.GetId(), d.GetAttempt()), {},
			}})
			if err != nil {
				return err
			}
		}
	}
}

func serveStrange() {
	goplugin.Serve(&goplugin.ServeConfig{
		HandshakeConfig: handshakeConfig(os.Getenv(wire.CookieName)), Logger: hclog.NewNullLogger(),
		GRPCServer: goplugin.DefaultGRPCServer,
		Plugins:    goplugin.PluginSet{wire.KindSink: strange{}},
	})
}

// runParent is a daemon that is killed: it starts a plugin, tells its process id, and waits.
func runParent() error {
	h, err := New(Options{Name: "child", Command: []string{os.Args[0], "sdk"}, SocketRoot: os.Args[2]})
	if err != nil {
		return err
	}
	if err := h.Deliver(context.Background(), one("1", 1, "ok")); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(os.Args[2], "pid.part"), fmt.Append(nil, h.Status().PID), 0o600); err != nil {
		return err
	}
	if err := os.Rename(filepath.Join(os.Args[2], "pid.part"), filepath.Join(os.Args[2], "pid")); err != nil {
		return err
	}
	time.Sleep(time.Minute)
	return nil
}

func one(id string, attempt int, topic string) relay.Delivery {
	return relay.Delivery{ID: id, Attempt: attempt, Notifications: []relay.Notification{{
		ID: id, Topic: topic, Hub: "h", Data: []byte(`{"topic":"` + topic + `"}`),
	}}}
}

// watch records the log of a host.
type watch struct {
	t      *testing.T
	status func() Status
	log    *safeBuffer
	report string

	mu     sync.Mutex
	events map[Event]int
}

// startPatience is the time limit for a plugin to start and for an attempt that waits for it. On a machine that stalls, a
// start can take more than 30 seconds.
const startPatience = 2 * time.Minute

// newWatch returns the options of a plugin that is watched.
func newWatch(t *testing.T, mode string, change func(*Options)) (*watch, Options) {
	t.Helper()
	w := &watch{t: t, log: &safeBuffer{}, report: filepath.Join(t.TempDir(), "report"), events: map[Event]int{}}
	o := Options{
		Name: "watcher", Command: []string{os.Args[0], mode}, SocketRoot: shortFolder(t),
		Config:         fmt.Appendf(nil, `{"report":%q}`, w.report),
		Env:            []string{"GORACE=atexit_sleep_ms=0"},
		StartupTimeout: startPatience,
		Backoff:        10 * time.Millisecond, MaxBackoff: 20 * time.Millisecond,
		Log: slog.New(slog.NewJSONHandler(w.log, nil)).With("sink", "watcher"),
		Observe: func(e Event) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.events[e]++
		},
	}
	if change != nil {
		change(&o)
	}
	return w, o
}

// closes ends the host with the test.
func (w *watch) closes(host io.Closer, status func() Status) {
	w.status = status
	w.t.Cleanup(func() {
		if err := host.Close(); err != nil {
			w.t.Error(err)
		}
		if w.t.Failed() {
			w.t.Log(relay.Truncate(w.log.String(), 5000))
		}
	})
}

// rig is the host of a sink.
type rig struct {
	*Host
	*watch
}

func newRig(t *testing.T, mode string, change func(*Options)) *rig {
	t.Helper()
	w, o := newWatch(t, mode, change)
	h, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	w.closes(h, h.Status)
	return &rig{h, w}
}

// shortFolder is a temporary folder whose name is short enough for sockets.
func shortFolder(t *testing.T) string {
	t.Helper()
	path, err := os.MkdirTemp("/tmp", "hr")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(path) })
	return path
}

// deliver makes one attempt that must end in time.
func (r *rig) deliver(id string, attempt int, topic string, timeout time.Duration) error {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	return r.Deliver(ctx, one(id, attempt, topic))
}

func (r *rig) mustDeliver(id string) {
	r.t.Helper()
	if err := r.deliver(id, 1, "ok", startPatience); err != nil {
		r.t.Fatalf("deliver %s: %v", id, err)
	}
}

func (w *watch) count(e Event) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.events[e]
}

// until waits for a condition.
func (w *watch) until(what string, holds func() bool) {
	w.t.Helper()
	testkit.Eventually(w.t, what, func() error {
		if !holds() {
			return fmt.Errorf("the plugin is %+v", w.status())
		}
		return nil
	})
}

// signal sends a signal to the plugin, which must run: 0 would be ourselves.
func (w *watch) signal(s syscall.Signal) (pid int) {
	w.t.Helper()
	pid = w.status().PID
	if pid == 0 {
		w.t.Fatalf("nothing runs that could get %s; the plugin is %+v", s, w.status())
	}
	if err := syscall.Kill(pid, s); err != nil {
		w.t.Fatal(err)
	}
	if s == syscall.SIGSTOP {
		w.until("all threads have stopped", func() bool { return hasStopped(pid) })
	}
	return pid
}

// hasStopped reports whether all threads of a process are stopped. On a busy machine, threads continue for a while
// after SIGSTOP. Without /proc it returns true.
func hasStopped(pid int) bool {
	stats, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	for _, name := range stats {
		stat, err := os.ReadFile(name)
		if err != nil {
			return false
		}
		if _, state, ok := strings.Cut(string(stat), ") "); !ok || state[0] != 'T' {
			return false
		}
	}
	return true
}

func (w *watch) lines() []string {
	text, err := os.ReadFile(w.report)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		w.t.Fatal(err)
	}
	return strings.Fields(strings.ReplaceAll(strings.TrimSpace(string(text)), " ", "_"))
}

// wants fails unless err contains all texts, in one line.
func wants(t *testing.T, err error, outcome relay.Outcome, texts ...string) {
	t.Helper()
	got, _ := relay.Classify(err)
	if err == nil || got != outcome {
		t.Fatalf("outcome %s (%v), want %s", got, err, outcome)
	}
	for _, text := range texts {
		if !strings.Contains(err.Error(), text) {
			t.Errorf("%q does not say %q", err, text)
		}
	}
	if strings.Contains(err.Error(), "\n") {
		t.Errorf("%q has more than one line", err)
	}
}

type safeBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *safeBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *safeBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}
