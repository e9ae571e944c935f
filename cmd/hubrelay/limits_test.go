package main_test

import (
	"errors"
	"strconv"
	"testing"
)

// TestLimitsOfClients lets a daemon be full, and looks that who was refused can come back with the same token.
func TestLimitsOfClients(t *testing.T) {
	t.Parallel()
	d := serve(t, setup{redis: `url: "memory:"`, env: []string{
		"HUBRELAY_WEBSOCKET__MAX_CONNECTIONS=3", "HUBRELAY_WEBSOCKET__MAX_PER_HUB=2", "HUBRELAY_WEBSOCKET__MAX_PER_KEY=2",
	}})
	open := func(key, hub string) (query string, refused reply) {
		t.Helper()
		query = "?token=" + d.token(t, key, hub)
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
	eventually(t, "the token to open the place that is free", func() error {
		if ws, refused := d.upgrade(t, query, nil); ws == nil {
			return errors.New(refused.body)
		}
		return nil
	})
	for line, want := range map[string]float64{"hubrelay_stream_clients": 3, `hubrelay_stream_turned_away_total{limit="node"}`: 1} {
		if got := metric(t, d, line); got != want {
			t.Errorf("%s is %v, want %v", line, got, want)
		}
	}
}

// wantLater demands a Retry-After of a few seconds.
func wantLater(t *testing.T, r reply) {
	t.Helper()
	if n, err := strconv.Atoi(r.header.Get("Retry-After")); err != nil || n < 2 || n > 10 {
		t.Errorf("Retry-After is %q", r.header.Get("Retry-After"))
	}
}
