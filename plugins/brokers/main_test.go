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
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/hubrelay/hubrelay/plugins"
	"github.com/hubrelay/hubrelay/plugins/plugintest"
	"github.com/hubrelay/hubrelay/plugins/sdk"
	"github.com/hubrelay/hubrelay/relay"
)

// realVariable has the tests start the real servers, which `make test-brokers` installs.
const realVariable = "HUBRELAY_TEST_BROKERS"

// patience bounds every wait for something that must happen.
const patience = 60 * time.Second

// secret is the password of every server here; no error may show it.
const (
	testUser = "hubrelay"
	secret   = "not-to-be-seen-5417"
)

// The test binary is the plugin too.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "plugin" {
		var config Config
		sink := New(&config)
		if err := sdk.ServeDeliveries(sink.Deliver, sdk.Config(&config), sdk.OnStart(sink.Start), sdk.OnStop(sink.Stop)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	// One for all meters of the process, which Sarama starts and nobody can end.
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("github.com/rcrowley/go-metrics.(*meterArbiter).tick"))
}

// started opens a sink that ends with the test.
func started(t *testing.T, c Config) *Sink {
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

// delivery is of one notification, whose text would not survive a decoder that is not careful.
func delivery(i int) relay.Delivery {
	id := fmt.Sprintf("6740a1b2%016x", i)
	data := fmt.Sprintf(`{"topic":"container.created",  "object":{"id":"%s","state":"","error":"","n":12345678901234567890.10,`+
		`"text":"zero \u0000, \ud83d\ude00, ü, 'quoted' \\ <b>&amp;"},"context":{"hub_id":"hub.%d","account_id":"a","environments":[],`+
		`"dns_zones":[],"clusters":[],"containers":["c-%d"]},"flags":null}`, id, i%7, i%50)
	return relay.Delivery{ID: id, Attempt: 1, Notifications: []relay.Notification{{
		ID: id, Topic: "container.created", Hub: fmt.Sprintf("hub.%d", i%7), Account: "a", Data: json.RawMessage(data),
	}}}
}

// received is what an independent client of the broker has seen.
type received struct{ where, id, payload string }

// rig is one broker under test.
type rig struct {
	config Config
	// sync is called once there is something to see; read returns all that has been seen so far.
	read func(t *testing.T) []received
	// kill ends the server as harshly as it may be without losing what it has acknowledged, restart brings it back on the same
	// data, freeze stops it and lets it go on. They are nil where there is no server.
	kill, restart func()
	freeze        func(frozen bool)
}

func (r rig) deliver(t *testing.T, s *Sink, d relay.Delivery) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	return s.Deliver(ctx, d)
}

// find waits until the client has seen all of the given deliveries, byte for byte, and returns how often it saw each.
func (r rig) find(t *testing.T, want map[string]relay.Delivery) map[string][]received {
	t.Helper()
	deadline := time.Now().Add(patience)
	for {
		seen := map[string][]received{}
		for _, got := range r.read(t) {
			seen[got.id] = append(seen[got.id], got)
		}
		missing := 0
		for id := range want {
			if len(seen[id]) == 0 {
				missing++
			}
		}
		if missing == 0 {
			r.compare(t, want, seen)
			return seen
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d of %d are missing", missing, len(want))
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func (r rig) compare(t *testing.T, want map[string]relay.Delivery, seen map[string][]received) {
	t.Helper()
	for id, d := range want {
		payload, err := d.Payload()
		if err != nil {
			t.Fatal(err)
		}
		for _, got := range seen[id] {
			if got.payload != string(payload) {
				t.Fatalf("%s came as\n%s\nnot as\n%s", id, got.payload, payload)
			}
		}
	}
}

// suite is what every broker must pass.
func suite(t *testing.T, r rig) {
	t.Run("what is delivered is there byte for byte", func(t *testing.T) {
		s := started(t, r.config)
		want := map[string]relay.Delivery{}
		digest := delivery(5)
		digest.ID = "6740a1b2ffffffffffffffff"
		digest.Notifications = append(digest.Notifications, delivery(6).Notifications...)
		digest.Digest = &relay.Digest{Count: 2}
		for _, d := range []relay.Delivery{delivery(1), delivery(2), digest} {
			if err := r.deliver(t, s, d); err != nil {
				t.Fatal(err)
			}
			want[d.ID] = d
		}
		for id, got := range r.find(t, want) {
			if want[id].ID != "" && len(got) != 1 {
				t.Errorf("%s came %d times", id, len(got))
			}
		}
	})
	t.Run("of a batch each is a message of its own", func(t *testing.T) {
		s := started(t, r.config)
		want := map[string]relay.Delivery{}
		batch := relay.Delivery{ID: "6740a1b2eeeeeeeeeeeeeeee", Attempt: 1, Batch: true}
		for i := range 20 {
			d := delivery(40 + i)
			want[d.ID] = d
			batch.Notifications = append(batch.Notifications, d.Notifications...)
		}
		if err := r.deliver(t, s, batch); err != nil {
			t.Fatal(err)
		}
		r.find(t, want)
	})
	t.Run("it passes the checks of a plugin", func(t *testing.T) {
		config, err := json.Marshal(asGiven(t, r.config))
		if err != nil {
			t.Fatal(err)
		}
		plugintest.Run(t, plugintest.Plugin{
			Kind: plugins.KindSink, Command: []string{os.Args[0], "plugin"}, Env: []string{"GORACE=atexit_sleep_ms=0"}, Config: config,
			StartupTimeout: patience, Timeout: 30 * time.Second,
		})
	})
	if r.freeze != nil {
		t.Run("a server that hangs costs no more than an attempt's time", func(t *testing.T) { r.hangs(t) })
	}
	if r.kill != nil {
		t.Run("a connection that dies without a word is replaced", func(t *testing.T) { r.silentDeath(t) })
		t.Run("a server that goes away among 2,000 and comes back has them all", func(t *testing.T) { r.outage(t) })
	}
}

// asGiven is a configuration as an operator writes it.
func asGiven(t *testing.T, c Config) map[string]any {
	t.Helper()
	text, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	var all map[string]any
	if err := json.Unmarshal(text, &all); err != nil {
		t.Fatal(err)
	}
	for key, value := range all {
		if value == nil || value == "" || value == false || value == 0.0 {
			delete(all, key)
		}
	}
	return all
}

func (r rig) hangs(t *testing.T) {
	s := started(t, r.config)
	if err := r.deliver(t, s, delivery(10)); err != nil {
		t.Fatal(err)
	}
	r.freeze(true)
	begun := time.Now()
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			defer cancel()
			err := s.Deliver(ctx, delivery(100+i))
			if outcome, _ := relay.Classify(err); outcome != relay.OutcomeRetry {
				t.Errorf("a hanging server led to %v (%s)", err, outcome)
			}
		})
	}
	wg.Wait()
	took := time.Since(begun)
	r.freeze(false)
	if took > 4*time.Second {
		t.Errorf("attempts of 2 s took %s", took)
	}
	r.recovers(t, s, delivery(11))
}

// silentDeath loses the connection as a broken line does: nothing comes any more, and no end either. What is written then fills
// the socket.
func (r rig) silentDeath(t *testing.T) {
	p := newProxy(t, r.config.Addresses[0])
	c := r.config
	c.Addresses = []string{p.address}
	s := started(t, c)
	if err := r.deliver(t, s, delivery(12)); err != nil {
		t.Fatal(err)
	}
	p.swallow()
	var wg sync.WaitGroup
	for i := range 100 {
		wg.Go(func() {
			d := delivery(200 + i)
			d.Notifications[0].Data = append(d.Notifications[0].Data, strings.Repeat(" ", 100<<10)...)
			r.recovers(t, s, d)
		})
	}
	wg.Wait()
}

// recovers wants a delivery to succeed before long.
func (r rig) recovers(t *testing.T, s *Sink, d relay.Delivery) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for {
		err := r.deliver(t, s, d)
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Errorf("it does not recover: %v", err)
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
}

const batch = 2000

// outage delivers many at once, each again after a failure as the daemon would, while the server is killed and comes back.
func (r rig) outage(t *testing.T) {
	s := started(t, r.config)
	want := map[string]relay.Delivery{}
	work := make(chan relay.Delivery, batch)
	for i := range batch {
		d := delivery(10_000 + i)
		want[d.ID] = d
		work <- d
	}
	close(work)
	var delivered, failed atomic.Int64
	quarter, noticed := make(chan struct{}), make(chan struct{})
	var wg sync.WaitGroup
	for range 64 {
		wg.Go(func() {
			for d := range work {
				for {
					ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
					err := s.Deliver(ctx, d)
					cancel()
					if err == nil {
						break
					}
					if failed.Add(1) == 1 {
						close(noticed)
					}
					if outcome, _ := relay.Classify(err); outcome != relay.OutcomeRetry || strings.Contains(err.Error(), secret) {
						t.Errorf("an outage led to %v (%s)", err, outcome)
						return
					}
					time.Sleep(50 * time.Millisecond)
				}
				if delivered.Add(1) == batch/4 {
					close(quarter)
				}
			}
		})
	}
	<-quarter
	r.kill()
	select {
	case <-noticed:
	case <-time.After(patience):
		t.Error("nothing failed while the server was away")
	}
	r.restart()
	wg.Wait()
	repeats := 0
	for id, got := range r.find(t, want) {
		if _, ours := want[id]; ours {
			repeats += len(got) - 1
		}
	}
	t.Logf("%d deliveries, %d failed attempts, %d repeats, all with their id", delivered.Load(), failed.Load(), repeats)
}

// refused makes one attempt that must fail, and looks at what it says.
func refused(t *testing.T, c Config, want relay.Outcome, words ...string) {
	t.Helper()
	err := rig{}.deliver(t, started(t, c), delivery(1))
	if outcome, _ := relay.Classify(err); err == nil || outcome != want {
		t.Fatalf("want %s, got %v", want, err)
	}
	t.Log(err)
	for _, word := range append(words, c.Broker) {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("%q does not name %q", err, word)
		}
	}
	for _, hidden := range []string{secret, c.Password} {
		if hidden != "" && strings.Contains(err.Error(), hidden) {
			t.Errorf("%q shows the password", err)
		}
	}
}

// freePort is one that nobody listens on.
func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	address, ok := l.Addr().(*net.TCPAddr)
	if !ok {
		t.Fatalf("%s is no address of TCP", l.Addr())
	}
	return address.Port
}

func local(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

func write(t *testing.T, path, text string) string {
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

func eventually(t *testing.T, what string, probe func() error) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for {
		err := probe()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("waited %s for %s: %v", patience, what, err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}
