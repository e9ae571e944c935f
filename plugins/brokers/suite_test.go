package brokers

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/plugins/host"
	"github.com/hubrelay/hubrelay/plugins/plugintest"
	"github.com/hubrelay/hubrelay/relay"
)

// received is what an independent client of the broker has seen.
type received struct {
	where, id, payload string
	beside             map[string]string // what travelled beside the payload
}

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
	var seen map[string][]received
	testkit.Eventually(t, "all deliveries", func() error {
		seen = map[string][]received{}
		for _, got := range r.read(t) {
			seen[got.id] = append(seen[got.id], got)
		}
		missing := 0
		for id := range want {
			if len(seen[id]) == 0 {
				missing++
			}
		}
		if missing > 0 {
			return fmt.Errorf("%d of %d are missing", missing, len(want))
		}
		return nil
	})
	r.compare(t, want, seen)
	return seen
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
	t.Run("what is explained is what comes", func(t *testing.T) { r.explained(t) })
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
			Kind: host.KindSink, Command: []string{os.Args[0], "plugin"}, Env: []string{"GORACE=atexit_sleep_ms=0"}, Config: config,
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

// explained wants the explanation of a delivery to say what an independent client then sees of it.
func (r rig) explained(t *testing.T) {
	d := delivery(3)
	c := r.config
	said, err := New(&c).Explain(d) // by a process that was not started
	if err != nil {
		t.Fatal(err)
	}
	if err := r.deliver(t, started(t, r.config), d); err != nil {
		t.Fatal(err)
	}
	got := r.find(t, map[string]relay.Delivery{d.ID: d})[d.ID][0]
	headers := map[string]string{}
	for _, h := range said.Headers {
		headers[h.Name] = h.Value
	}
	if text := headers["metadata"]; text != "" { // of a row all that is beside is one column
		if err := json.Unmarshal([]byte(text), &headers); err != nil {
			t.Fatal(err)
		}
	}
	if string(said.Payload) != got.payload || len(got.beside) < 4 {
		t.Errorf("the payload is said to be\n%s\nand came as\n%s\nbeside %v", said.Payload, got.payload, got.beside)
	}
	for name, value := range got.beside {
		if headers[name] != value {
			t.Errorf("%s is said to be %q, and came as %q", name, headers[name], value)
		}
	}
	if !slices.Contains(slices.Collect(maps.Values(headers)), got.where) {
		t.Errorf("it came by %q, which is not in %v", got.where, headers)
	}
	if said.Method != "publish" || !strings.Contains(said.Target, r.config.Addresses[0]) || strings.Contains(fmt.Sprintf("%s", said), secret) {
		t.Errorf("%+v", said)
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
	if took > 20*time.Second { // one after the other they take 40 s
		t.Errorf("20 attempts of 2 s took %s", took)
	}
	r.recovers(t, s, delivery(11))
}

// silentDeath loses the connection as a broken line does: nothing comes any more, and no end either. What is written then fills
// the socket.
func (r rig) silentDeath(t *testing.T) {
	p := testkit.StartProxy(t, func() string { return r.config.Addresses[0] })
	c := r.config
	c.Addresses = []string{p.Addr()}
	s := started(t, c)
	if err := r.deliver(t, s, delivery(12)); err != nil {
		t.Fatal(err)
	}
	p.Stall()
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
	if err := testkit.Poll(func() error { return r.deliver(t, s, d) }); err != nil {
		t.Errorf("it does not recover: %v", err)
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
