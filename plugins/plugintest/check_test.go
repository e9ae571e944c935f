package plugintest_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/plugins/plugintest"
	"github.com/hubrelay/hubrelay/plugins/sdk"
	"github.com/hubrelay/hubrelay/relay"
)

// The test binary runs itself as the plugin. Its first argument selects the behavior.
func TestMain(m *testing.M) {
	if os.Getenv("HUBRELAY_PLUGIN") == "" {
		testkit.RunParallel(8) // the tests wait most of the time
		goleak.VerifyTestMain(m)
		return
	}
	serve := serveSink
	if strings.HasPrefix(os.Args[1], "driver ") {
		serve = serveDriver
	}
	if err := serve(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

type anything map[string]any

// UnmarshalJSON takes whatever there is.
func (a *anything) UnmarshalJSON([]byte) error { return nil }

func serveSink(mode string) error {
	var lax struct{ anything }
	options := []sdk.Option{}
	if mode == "lax" {
		options = append(options, sdk.Config(&lax))
	}
	err := sdk.ServeSink(func(ctx context.Context, n relay.Notification) error {
		switch {
		case mode == "fails":
			return errors.New("not now")
		case mode == "dies" && strings.HasPrefix(n.ID, "many"):
			os.Exit(1)
		case mode == "forgets" && n.ID == "2", mode == "stalls" && n.ID == "many-7":
			<-make(chan struct{})
		}
		return nil
	}, options...)
	if mode == "stays" {
		_, _ = io.Copy(io.Discard, os.Stdin)
		time.Sleep(time.Minute)
	}
	return err
}

// driver does what its mode says.
type driver string

func serveDriver(mode string) error {
	var lax struct{ anything }
	options := []sdk.Option{}
	if mode == "driver lax" {
		options = append(options, sdk.Config(&lax))
	}
	return sdk.ServeDriver(driver(mode), options...)
}

func (d driver) Describe(context.Context) (relay.DriverDescription, error) {
	id := "copy"
	if d == "driver shouts" {
		id = "Copy"
	}
	return relay.DriverDescription{Name: "check", Steps: []relay.MigrationStep{{ID: id, Caption: "Copy"}}}, nil
}

func (d driver) Configure(_ context.Context, servers []relay.Server) error {
	switch {
	case d == "driver picky" && len(servers) > 0:
		return fmt.Errorf("server %s: path is missing", servers[0].ID)
	case d == "driver needy" && len(servers) == 0:
		return errors.New("server is missing")
	}
	return nil
}

func (d driver) Migrate(context.Context, relay.Migration, func(relay.Progress)) error {
	switch d {
	case "driver moves":
		return nil
	case "driver unsettled":
		return relay.Indeterminate(errors.New("who knows"))
	case "driver dies":
		os.Exit(1)
	}
	return errors.New("server server-1: path is missing")
}

func (d driver) Close() error { return nil }

func check(t *testing.T, mode string, timeout time.Duration) (failed, advice []string) {
	t.Helper()
	kind := ""
	if mode == "stays" {
		kind = "sink" // to find that out would take as long as it stays
	}
	good := plugintest.Check(context.Background(), plugintest.Plugin{
		Kind: kind, Command: []string{os.Args[0], mode}, Env: []string{"GORACE=atexit_sleep_ms=0"},
		StartupTimeout: time.Minute, Timeout: timeout,
	}, func(r plugintest.Result) {
		switch {
		case r.Err == nil:
		case r.Advice:
			advice = append(advice, r.Name+": "+r.Err.Error())
		default:
			failed = append(failed, r.Name+": "+r.Err.Error())
		}
	})
	if good != (len(failed) == 0) {
		t.Errorf("good is %v with %v", good, failed)
	}
	return failed, advice
}

func TestCheck(t *testing.T) {
	t.Parallel()
	for mode, want := range map[string]struct{ failed, advice string }{
		"good":    {},
		"fails":   {}, // which is an answer
		"lax":     {"", "rejects an unknown key"},
		"dies":    {"the plugin exited with status 1", ""},
		"stays":   {"it had to be killed", ""},
		"forgets": {"no ack for the delivery \"2\" and the attempt 1", ""},
		"stalls":  {"1 of 1000 got no response: wait for the response of the plugin: no ack within 15s", ""},

		"driver good":      {},
		"driver picky":     {}, // refuses the servers
		"driver lax":       {"", "rejects an unknown key"},
		"driver moves":     {"it reports that it moved an instance that does not exist", ""},
		"driver unsettled": {"it reports an unsettled migration", ""},
		"driver dies":      {"the plugin exited with status 1", ""},
		"driver shouts":    {"the step \"Copy\" must have an id", ""},
		"driver needy":     {"server is missing", ""},
	} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			timeout := 30 * time.Second
			if mode == "forgets" || mode == "stalls" {
				timeout = 15 * time.Second
			}
			failed, advice := check(t, mode, timeout)
			for _, c := range []struct {
				got  []string
				want string
			}{{failed, want.failed}, {advice, want.advice}} {
				if (len(c.got) > 0) != (c.want != "") || !strings.Contains(strings.Join(c.got, "\n"), c.want) {
					t.Errorf("got %q, want %q", c.got, c.want)
				}
			}
		})
	}
}

func TestCheck_MissingProgram(t *testing.T) {
	t.Parallel()
	var results []plugintest.Result
	good := plugintest.Check(context.Background(), plugintest.Plugin{
		Command: []string{"/no/such/program"},
	}, func(r plugintest.Result) { results = append(results, r) })
	if good || len(results) != 1 || !strings.Contains(results[0].Err.Error(), "does not exist") {
		t.Errorf("%v, %v", good, results)
	}
	results = nil
	good = plugintest.Check(context.Background(), plugintest.Plugin{
		Command: []string{"x"}, Kind: "source",
	}, func(r plugintest.Result) { results = append(results, r) })
	if good || len(results) != 1 || !strings.Contains(results[0].Err.Error(), `unknown kind of plugin "source"`) {
		t.Errorf("%v, %v", good, results)
	}
}

func TestRun(t *testing.T) {
	t.Parallel()
	plugintest.Run(t, plugintest.Plugin{
		Command: []string{os.Args[0], "good"}, Env: []string{"GORACE=atexit_sleep_ms=0"}, StartupTimeout: time.Minute,
		Timeout: 30 * time.Second,
	})
}
