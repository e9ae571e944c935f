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

// received is a message that an independent client of the broker has consumed.
type received struct {
	name, id, payload string
	metadata          map[string]string
}

// rig is one broker under test.
type rig struct {
	config Config
	// read returns all messages that the client has consumed so far.
	read func(t *testing.T) []received
	// kill stops the server as abruptly as possible without losing acknowledged messages, restart starts it with the
	// same data, and freeze suspends or resumes it. They are nil if there is no server.
	kill, restart func()
	freeze        func(frozen bool)
}

// deliver makes an attempt, and repeats it if the machine was too busy to connect in time.
func (r rig) deliver(t *testing.T, s *Sink, d relay.Delivery) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for {
		err := s.Deliver(ctx, d)
		if err == nil || !strings.Contains(err.Error(), errConnectedLate.Error()) {
			return err
		}
	}
}

// waitForAll waits until the client has consumed all deliveries with the same bytes, and returns the messages by ID.
func (r rig) waitForAll(t *testing.T, want map[string]relay.Delivery) map[string][]received {
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
	r.comparePayloads(t, want, seen)
	return seen
}

func (r rig) comparePayloads(t *testing.T, want map[string]relay.Delivery, seen map[string][]received) {
	t.Helper()
	for id, d := range want {
		payload, err := d.Payload()
		if err != nil {
			t.Fatal(err)
		}
		for _, got := range seen[id] {
			if got.payload != string(payload) {
				t.Fatalf("%s: got\n%s\nwant\n%s", id, got.payload, payload)
			}
		}
	}
}

// unusualNames are identifiers that the relay accepts.
var unusualNames = []string{
	"\uffff", "\ufffe", "\ufdd0", "\U0001ffff", "\U0010fffe", "\ufeff", "\u200b", "\u2028", "\u202e", "\ue000", "\ufffd",
	"\U0001f600",
	" ", "a b", "+", "#", "/", "$SYS", ">", "*", ".", "..", "'", `"`, "\\", "{hub}", "%s", "--", "a:b", "\u0301",
}

// runSuite is the conformance suite of all brokers.
func runSuite(t *testing.T, r rig) {
	t.Run("delivers the same bytes", func(t *testing.T) {
		s := startSink(t, r.config)
		want := map[string]relay.Delivery{}
		digest := newDelivery(5)
		digest.ID = "6740a1b2ffffffffffffffff"
		digest.Notifications = append(digest.Notifications, newDelivery(6).Notifications...)
		digest.Digest = &relay.Digest{Count: 2}
		for _, d := range []relay.Delivery{newDelivery(1), newDelivery(2), digest} {
			if err := r.deliver(t, s, d); err != nil {
				t.Fatal(err)
			}
			want[d.ID] = d
		}
		for id, got := range r.waitForAll(t, want) {
			if want[id].ID != "" && len(got) != 1 {
				t.Errorf("got %s %d times", id, len(got))
			}
		}
	})
	t.Run("explains what is delivered", func(t *testing.T) { r.testExplain(t) })
	t.Run("splits a batch into messages", func(t *testing.T) {
		s := startSink(t, r.config)
		want := map[string]relay.Delivery{}
		batch := relay.Delivery{ID: "6740a1b2eeeeeeeeeeeeeeee", Attempt: 1, Batch: true}
		for i := range 20 {
			d := newDelivery(40 + i)
			want[d.ID] = d
			batch.Notifications = append(batch.Notifications, d.Notifications...)
		}
		if err := r.deliver(t, s, batch); err != nil {
			t.Fatal(err)
		}
		r.waitForAll(t, want)
	})
	t.Run("delivers unusual identifiers", func(t *testing.T) {
		s := startSink(t, r.config)
		want := map[string]relay.Delivery{}
		for i, name := range unusualNames {
			d := newDelivery(80 + i)
			d.Notifications[0].Hub = name
			container, _ := json.Marshal(name)
			d.Notifications[0].Data = fmt.Appendf(nil, `{"topic":"container.created","object":{"id":"1"},"context":`+
				`{"containers":[%s]}}`, container)
			want[d.ID] = d
			if err := r.deliver(t, s, d); err != nil {
				t.Errorf("%q: %v", name, err)
			}
		}
		r.waitForAll(t, want)
	})
	t.Run("passes the plugin checks", func(t *testing.T) {
		config, err := json.Marshal(settingsOf(t, r.config))
		if err != nil {
			t.Fatal(err)
		}
		plugintest.Run(t, plugintest.Plugin{
			Kind: host.KindSink, Command: []string{os.Args[0], "plugin"}, Config: config,
			Env:            []string{"GORACE=atexit_sleep_ms=0"},
			StartupTimeout: patience, Timeout: 30 * time.Second,
		})
	})
	if r.freeze != nil {
		t.Run("limits attempts at a hanging server", func(t *testing.T) { r.testHang(t) })
	}
	if r.kill != nil {
		t.Run("replaces a connection that is lost silently", func(t *testing.T) { r.testSilentLoss(t) })
		t.Run("delivers 2,000 across an outage", func(t *testing.T) { r.testOutage(t) })
	}
}

// testExplain compares the explanation of a delivery with the message that an independent client consumes.
func (r rig) testExplain(t *testing.T) {
	d := newDelivery(3)
	c := r.config
	explanation, err := New(&c).Preview(d) // without Start
	if err != nil {
		t.Fatal(err)
	}
	if err := r.deliver(t, startSink(t, r.config), d); err != nil {
		t.Fatal(err)
	}
	got := r.waitForAll(t, map[string]relay.Delivery{d.ID: d})[d.ID][0]
	headers := map[string]string{}
	for _, h := range explanation.Headers {
		headers[h.Name] = h.Value
	}
	if text := headers["metadata"]; text != "" { // PostgreSQL has one column for it
		if err := json.Unmarshal([]byte(text), &headers); err != nil {
			t.Fatal(err)
		}
	}
	if string(explanation.Payload) != got.payload || len(got.metadata) < 4 {
		t.Errorf("explained payload\n%s\nbut got\n%s\nwith %v", explanation.Payload, got.payload, got.metadata)
	}
	for name, value := range got.metadata {
		if headers[name] != value {
			t.Errorf("header %s: explained %q, but got %q", name, headers[name], value)
		}
	}
	if !slices.Contains(slices.Collect(maps.Values(headers)), got.name) {
		t.Errorf("got name %q, which is not in %v", got.name, headers)
	}
	if explanation.Method != "publish" || !strings.Contains(explanation.Target, r.config.Addresses[0]) ||
		strings.Contains(fmt.Sprintf("%s", explanation), secret) {
		t.Errorf("got %+v", explanation)
	}
}

// settingsOf returns the keys of a configuration that are set.
func settingsOf(t *testing.T, c Config) map[string]any {
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

// testHang makes attempts while the server is frozen.
func (r rig) testHang(t *testing.T) {
	s := startSink(t, r.config)
	if err := r.deliver(t, s, newDelivery(10)); err != nil {
		t.Fatal(err)
	}
	r.freeze(true)
	startedAt := time.Now()
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			defer cancel()
			err := s.Deliver(ctx, newDelivery(100+i))
			if outcome, _ := relay.Classify(err); outcome != relay.OutcomeRetry {
				t.Errorf("hanging server: got %v (%s)", err, outcome)
			}
		})
	}
	wg.Wait()
	took := time.Since(startedAt)
	r.freeze(false)
	if took > 20*time.Second { // one after the other they take 40 s
		t.Errorf("20 concurrent attempts of 2 s took %s", took)
	}
	r.expectRecovery(t, s, newDelivery(11))
}

// testSilentLoss stalls the connection: nothing arrives anymore, not even its end, and writes fill the socket.
func (r rig) testSilentLoss(t *testing.T) {
	p := testkit.StartProxy(t, func() string { return r.config.Addresses[0] })
	c := r.config
	c.Addresses = []string{p.Addr()}
	s := startSink(t, c)
	if err := r.deliver(t, s, newDelivery(12)); err != nil {
		t.Fatal(err)
	}
	p.Stall()
	var wg sync.WaitGroup
	for i := range 100 {
		wg.Go(func() {
			d := newDelivery(200 + i)
			d.Notifications[0].Data = append(d.Notifications[0].Data, strings.Repeat(" ", 100<<10)...)
			r.expectRecovery(t, s, d)
		})
	}
	wg.Wait()
}

// expectRecovery repeats a delivery until it succeeds.
func (r rig) expectRecovery(t *testing.T, s *Sink, d relay.Delivery) {
	t.Helper()
	if err := testkit.Poll(func() error { return r.deliver(t, s, d) }); err != nil {
		t.Errorf("no recovery: %v", err)
	}
}

const batch = 2000

// testOutage delivers concurrently and repeats failed attempts, like the daemon, while the server is killed and
// restarted.
func (r rig) testOutage(t *testing.T) {
	s := startSink(t, r.config)
	want := map[string]relay.Delivery{}
	work := make(chan relay.Delivery, batch)
	for i := range batch {
		d := newDelivery(10_000 + i)
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
					if outcome, _ := relay.Classify(err); outcome != relay.OutcomeRetry ||
						strings.Contains(err.Error(), secret) {
						t.Errorf("outage: got %v (%s)", err, outcome)
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
		t.Error("no attempt failed during the outage")
	}
	r.restart()
	wg.Wait()
	repeats := 0
	for id, got := range r.waitForAll(t, want) {
		if _, published := want[id]; published {
			repeats += len(got) - 1
		}
	}
	t.Logf("%d deliveries, %d failed attempts, %d repeated messages", delivered.Load(), failed.Load(), repeats)
}
