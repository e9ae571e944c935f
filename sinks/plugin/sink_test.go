package plugin

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/plugins/host"
	"github.com/hubrelay/hubrelay/plugins/sdk"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/sinks/sinktest"
)

// The test binary runs itself as the plugin.
func TestMain(m *testing.M) {
	if os.Getenv("HUBRELAY_PLUGIN") == "" {
		testkit.RunParallel(8) // the tests wait most of the time
		goleak.VerifyTestMain(m)
		return
	}
	if err := serve(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// serve behaves as its configuration says.
func serve() error {
	var c struct {
		Behaviour sinktest.Behavior `json:"behavior"`
		Report    string            `json:"report"`
		Secret    string            `json:"secret"`
	}
	var mu sync.Mutex
	options := []sdk.Option{sdk.Config(&c)}
	if os.Getenv("EXPLAINS") != "" {
		options = append(options, sdk.Explain(func(d relay.Delivery) (relay.Preview, error) {
			if d.ID == "2" {
				return relay.Preview{}, errors.New("never this")
			}
			return relay.Preview{Method: "append", Target: d.ID, Payload: []byte(d.ID + "\n")}, nil
		}))
	}
	return sdk.ServeDeliveries(func(ctx context.Context, d relay.Delivery) error {
		mu.Lock()
		f, err := os.OpenFile(c.Report, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		if err == nil {
			_, err = fmt.Fprintln(f, d.ID)
			err = errors.Join(err, f.Close())
		}
		mu.Unlock()
		if err != nil {
			return relay.Permanent(err)
		}
		switch c.Behaviour {
		case sinktest.Fail:
			return errors.New("not now")
		case sinktest.Throttle:
			return relay.RetryAfter(errors.New("not now"), retryAfter)
		case sinktest.Reject:
			return relay.Permanent(errors.New("never this"))
		case sinktest.Gone:
			return relay.Gone(errors.New("never anything"))
		case sinktest.Hang:
			<-ctx.Done()
			return ctx.Err()
		}
		return nil
	}, options...)
}

const retryAfter = 2 * time.Minute

func TestConformance(t *testing.T) {
	t.Parallel()
	sinktest.Run(t, sinktest.Harness{
		Batches: true, SplitsBatches: true, RetryAfter: retryAfter, Secrets: []string{"s3cret"}, Open: openFor,
	})
}

func openFor(t *testing.T, b sinktest.Behavior) (relay.Sink, func() []string) {
	report := filepath.Join(t.TempDir(), "report")
	c := host.NewConfig()
	c.Command = []string{os.Args[0]}
	if b == sinktest.Unreachable {
		c.Command = []string{filepath.Join(t.TempDir(), "absent")}
	}
	c.Env = []string{"GORACE=atexit_sleep_ms=0", "PASSWORD=s3cret"}
	c.StartupTimeout = time.Minute
	c.Config = map[string]any{"behavior": int(b), "report": report, "secret": "s3cret"}
	sink, err := open(relay.SinkSettings{Name: "watcher", Log: testkit.Log(t)}, c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := sink.Close(); err != nil {
			t.Error(err)
		}
	})
	return sink, func() []string {
		text, err := os.ReadFile(report)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Error(err)
		}
		return strings.Fields(string(text))
	}
}

func TestAilment(t *testing.T) {
	t.Parallel()
	sink, _ := openFor(t, sinktest.Unreachable)
	ailing, ok := sink.(relay.Service)
	if !ok || ailing.Health() != nil {
		t.Fatal("the sink ails before it was started")
	}
	if err := sink.Deliver(context.Background(), sinktest.Sample("1")); err == nil {
		t.Error("delivered to nobody")
	}
	if err := ailing.Health(); err == nil || !strings.Contains(err.Error(), "does not exist") {
		t.Errorf("ailment: %v", err)
	}
}

func TestExplain(t *testing.T) {
	t.Parallel()
	c := host.NewConfig()
	c.Command, c.Args = []string{"./watcher"}, []string{"--key", "s3cret"}
	c.Config = map[string]any{"password": "s3cret"}
	sink, err := open(relay.SinkSettings{Name: "watcher", Log: testkit.Log(t)}, c)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = sink.Close() }()
	d := relay.Delivery{
		ID: "1", Attempt: 1, Notifications: []relay.Notification{
			{ID: "1", Data: []byte(`{"topic": "container.created"}`)},
		},
	}
	got, err := sink.Preview(t.Context(), d)
	if err != nil || !strings.Contains(got.Note, "Explain failed: the command") ||
		got.Target != "./watcher …" || string(got.Payload) != `{"topic": "container.created"}` ||
		fmt.Sprint(got.Headers) != "[{delivery 1} {attempt 1}]" {
		t.Errorf("got %+v (%v)", got, err)
	}
	if strings.Contains(fmt.Sprintf("%s", got), "s3cret") {
		t.Errorf("%s shows a secret", got)
	}
	if _, err := sink.Preview(t.Context(), relay.Delivery{ID: "2"}); err == nil {
		t.Error("an empty delivery was explained")
	}
}

// A plugin with Explain shows what it would send. For others, the daemon shows their input.
func TestExplainByThePlugin(t *testing.T) {
	t.Parallel()
	for _, explains := range []bool{false, true} {
		c := host.NewConfig()
		c.Command, c.Env, c.StartupTimeout = []string{os.Args[0]}, []string{"GORACE=atexit_sleep_ms=0"}, time.Minute
		if explains {
			c.Env = append(c.Env, "EXPLAINS=1")
		}
		sink, err := open(relay.SinkSettings{Name: "watcher", Log: testkit.Log(t)}, c)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = sink.Close() }()
		got, err := sink.Preview(t.Context(), sinktest.Sample("1"))
		switch {
		case err != nil:
			t.Error(err)
		case explains && (got.Method != "append" || string(got.Payload) != "1\n" || got.Note != ""),
			!explains && (got.Method != "give" || !strings.Contains(got.Note, "it does not implement Explain")):
			t.Errorf("got %+v", got)
		}
		if _, err := sink.Preview(t.Context(), sinktest.Sample("2")); explains &&
			(err == nil || !strings.Contains(err.Error(), "cannot send the delivery: never this")) {
			t.Errorf("what cannot be sent: %v", err)
		}
	}
}
