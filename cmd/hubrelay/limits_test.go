package main_test

import (
	"errors"
	"fmt"
	"strconv"
	"testing"

	"github.com/hubrelay/hubrelay/internal/testkit"
)

// TestLimitsOfClients fills a daemon and checks that rejected clients can use their token later.
func TestLimitsOfClients(t *testing.T) {
	t.Parallel()
	d := serve(t, daemonConfig{redis: `url: "memory:"`, env: []string{
		"HUBRELAY_WEBSOCKET__MAX_CONNECTIONS=3", "HUBRELAY_WEBSOCKET__MAX_PER_HUB=2",
		"HUBRELAY_WEBSOCKET__MAX_PER_KEY=2",
	}})
	open := func(key, hub string) (query string, refused testkit.Reply) {
		t.Helper()
		query = "?token=" + d.Token(t, key, hub)
		_, refused = d.upgrade(t, query, nil)
		return query, refused
	}
	first := d.connect(t, opsKey, "hub-1", "")
	d.connect(t, readerKey, "hub-1", "")
	query, refused := open(opsKey, "hub-1")
	e := wantError(t, refused, "429.rate-limiting", "", "this hub")
	if e.Error.Extra["limit"] != 2.0 {
		t.Errorf("extra is %v", e.Error.Extra)
	}
	wantLater(t, refused)
	d.connect(t, opsKey, "", "")
	_, refused = open(readerKey, "hub-2")
	wantError(t, refused, "503.not-ready", "", "this node")
	wantLater(t, refused)

	_ = first.conn.Close()
	testkit.Eventually(t, "the first to be gone",
		func() error { // earlier, the limit of the node would reject the token
			if got := d.Metric(t, "hubrelay_stream_clients"); got != 2 {
				return fmt.Errorf("there are %v clients", got)
			}
			return nil
		})
	testkit.Eventually(t, "the token to open the place that is free", func() error {
		if ws, refused := d.upgrade(t, query, nil); ws == nil {
			return errors.New(refused.Body)
		}
		return nil
	})
	for line, want := range map[string]float64{
		"hubrelay_stream_clients":                              3,
		`hubrelay_stream_clients_rejected_total{limit="node"}`: 1,
	} {
		if got := d.Metric(t, line); got != want {
			t.Errorf("%s is %v, want %v", line, got, want)
		}
	}
}

// TestLimitsOfHubsAndKeys reaches the limits of a hub and of a key, with websockets and event streams.
func TestLimitsOfHubsAndKeys(t *testing.T) {
	t.Parallel()
	d := serve(t, daemonConfig{redis: `url: "memory:"`, env: []string{
		"HUBRELAY_WEBSOCKET__MAX_CONNECTIONS=4", "HUBRELAY_WEBSOCKET__MAX_PER_HUB=2",
		"HUBRELAY_WEBSOCKET__MAX_PER_KEY=2",
	}})
	websocket := func(key, hub string) testkit.Reply {
		_, refused := d.upgrade(t, "?token="+d.Token(t, key, hub), nil)
		return refused
	}
	events := func(key, hub string) testkit.Reply {
		return d.Do(t, testkit.Request{
			Method: "GET", Key: key, Hub: hub,
			Header: map[string]string{"Accept": "text/event-stream"},
		})
	}
	want := func(refused testkit.Reply, code, full string) {
		t.Helper()
		e := wantError(t, refused, code, "", "this "+full)
		if full != "node" && (e.Error.Extra["per"] != full || e.Error.Extra["limit"] != 2.0) {
			t.Errorf("extra is %v", e.Error.Extra)
		}
		wantLater(t, refused)
	}
	d.connect(t, opsKey, "hub-1", "")
	d.connect(t, readerKey, "hub-1", "")
	last := d.connect(t, opsKey, "hub-2", "")
	for _, open := range []func(key, hub string) testkit.Reply{websocket, events} {
		want(open(opsKey, "hub-3"), "429.rate-limiting", "key")
		want(open(readerKey, "hub-1"), "429.rate-limiting", "hub")
	}
	d.connect(t, readerKey, "hub-2", "")
	want(events(opsKey, "hub-3"), "503.not-ready", "node")

	_ = last.conn.Close()
	for of, n := range map[string]float64{"key": 2, "hub": 2, "node": 1} {
		if got := d.Metric(t, `hubrelay_stream_clients_rejected_total{limit="`+of+`"}`); got != n {
			t.Errorf("%v were turned away by the limit of the %s, want %v", got, of, n)
		}
	}
	testkit.Eventually(t, "a place of the key to be free", func() error {
		if ws, refused := d.upgrade(t, "?token="+d.Token(t, opsKey, "hub-3"), nil); ws == nil {
			return errors.New(refused.Body)
		}
		return nil
	})
}

// wantLater expects a Retry-After of a few seconds.
func wantLater(t *testing.T, r testkit.Reply) {
	t.Helper()
	if n, err := strconv.Atoi(r.Header.Get("Retry-After")); err != nil || n < 2 || n > 10 {
		t.Errorf("Retry-After is %q", r.Header.Get("Retry-After"))
	}
}
