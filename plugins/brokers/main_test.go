package brokers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/hubrelay/hubrelay/internal/redistest"
	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/plugins/sdk"
	"github.com/hubrelay/hubrelay/relay"
)

// realVariable enables the tests with real servers, which `make test-brokers` installs.
const realVariable = "HUBRELAY_TEST_BROKERS"

// patience is the time limit of all waits.
const patience = 60 * time.Second

// All servers have this user. No error may contain its password.
const (
	testUser = "hubrelay"
	secret   = "not-to-be-seen-5417"
)

// The test binary is also the plugin.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "plugin" {
		var config Config
		sink := New(&config)
		err := sdk.ServeDeliveries(sink.Deliver, sdk.Config(&config), sdk.OnValidate(sink.CheckFiles),
			sdk.Explain(sink.Preview),
			sdk.OnStart(sink.Start), sdk.OnStop(sink.Stop))
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	testkit.RunParallel(4) // the tests mostly wait, but with more, a stalled process exceeds time limits of the plugin
	goleak.VerifyTestMain(m)
}

// startSink starts a sink and stops it at the end of the test.
func startSink(t *testing.T, c Config) *Sink {
	t.Helper()
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
	s := New(&c)
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Stop(context.Background()) })
	return s
}

// newDelivery returns a delivery of one notification, whose text would change if it were decoded and encoded again.
func newDelivery(i int) relay.Delivery {
	id := fmt.Sprintf("6740a1b2%016x", i)
	data := fmt.Sprintf(`{"topic":"container.created",  "object":{"id":"%s","state":"","error":"",`+
		`"n":12345678901234567890.10,"text":"zero \u0000, \ud83d\ude00, ü, 'quoted' \\ <b>&amp;"},`+
		`"context":{"hub_id":"hub.%d","account_id":"a","environments":[],`+
		`"dns_zones":[],"clusters":[],"containers":["c-%d"]},"flags":null}`, id, i%7, i%50)
	return relay.Delivery{ID: id, Attempt: 1, Notifications: []relay.Notification{{
		ID: id, Topic: "container.created", Hub: fmt.Sprintf("hub.%d", i%7), Account: "a", Data: json.RawMessage(data),
	}}}
}

// expectFailure makes one attempt, which must fail with an error that contains the words and the name of the broker.
func expectFailure(t *testing.T, c Config, want relay.Outcome, words ...string) {
	t.Helper()
	err := rig{}.deliver(t, startSink(t, c), newDelivery(1))
	if outcome, _ := relay.Classify(err); err == nil || outcome != want {
		t.Fatalf("got %v, want %s", err, want)
	}
	t.Log(err)
	for _, word := range append(words, c.Broker) {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("got %q, want %q in it", err, word)
		}
	}
	for _, hidden := range []string{secret, c.Password} {
		if hidden != "" && strings.Contains(err.Error(), hidden) {
			t.Errorf("%q contains the password", err)
		}
	}
}

func freePort(t *testing.T) int {
	t.Helper()
	port, err := strconv.Atoi(redistest.FreePort(t))
	if err != nil {
		t.Fatal(err)
	}
	return port
}

func localAddr(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

func writeFile(t *testing.T, path, text string) string {
	t.Helper()
	if !filepath.IsAbs(path) {
		path = filepath.Join(t.TempDir(), path)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

var errNotYet = errors.New("not yet")
