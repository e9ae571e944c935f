package main_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/hubrelay/hubrelay/internal/testkit"
)

// TestDeliveries_RetryAndDrop retries and drops single deliveries: scheduled ones, ones that wait in the queue, and a batch.
func TestDeliveries_RetryAndDrop(t *testing.T) {
	t.Parallel()
	var isFixed atomic.Bool
	hooks := receive(t, func(w http.ResponseWriter, h hook) {
		switch {
		case h.path == "/dead":
			w.WriteHeader(http.StatusUnprocessableEntity)
		case h.path != "/good" && !isFixed.Load():
			w.WriteHeader(http.StatusServiceUnavailable)
		default:
			w.WriteHeader(http.StatusNoContent)
		}
	})
	sink := func(name, path, hub, more string) string {
		return fmt.Sprintf("  %s: {type: webhook, url: %q, secrets: [%q], allow_cidrs: [127.0.0.0/8], hubs: [%s], "+
			"retry: {schedule: [1h]}%s}\n", name, hooks.url+path, webhookSecret, hub, more)
	}
	d := serve(t, daemonConfig{sinks: sink("bad", "/bad", "hub-1", "") +
		sink("batch", "/batch", "hub-1", ", batch: {wait: 100ms}") + sink("dead", "/dead", "hub-1", "") +
		sink("digest", "/good", "hub-1", ", digest: {wait: 1h}") +
		sink("paused", "/good", "hub-2", ", concurrency: 1")})
	command := func(wantCode int, args ...string) string {
		t.Helper()
		out, errOut, code := call(t, nil, "", append(args, "--admin", d.Admin)...)
		if code != wantCode {
			t.Fatalf("%v exited with %d: %s%s", args, code, out, errOut)
		}
		return out + errOut
	}
	command(0, "sinks", "pause", "paused")
	const count, queued = 8, 300
	ids := d.Publish(t, "hub-1", "application/x-ndjson", strings.Repeat(plain+"\n", count), nil)
	waiting := d.Publish(t, "hub-2", "application/x-ndjson", strings.Repeat(plain+"\n", queued), nil)
	list := func(sink, state string) (found []listedDelivery) {
		t.Helper()
		for line := range strings.Lines(command(0, "deliveries", "list", sink, "--state", state, "-o", "jsonl")) {
			var d listedDelivery
			if err := json.Unmarshal([]byte(line), &d); err != nil {
				t.Fatal(err)
			}
			found = append(found, d)
		}
		return found
	}
	for sink, want := range map[string]struct {
		state string
		count int
	}{"bad": {"retrying", count}, "batch": {"retrying", count}, "dead": {"dead", count}, "paused": {"waiting", queued}} {
		testkit.Eventually(t, "all deliveries of "+sink, func() error {
			if n := len(list(sink, want.state)); n != want.count {
				return fmt.Errorf("%d are %s", n, want.state)
			}
			return nil
		})
	}
	expect := func(id, sink, want string) {
		t.Helper()
		testkit.Eventually(t, sink+" "+want, func() error {
			var e shownEvent
			if err := json.Unmarshal([]byte(command(0, "events", "show", id, "-o", "json")), &e); err != nil {
				return err
			}
			if got := e.state(sink); !strings.HasPrefix(got, want) {
				return fmt.Errorf("got %q", got)
			}
			return nil
		})
	}
	testkit.Eventually(t, "all events in the digest", func() error {
		if list := list("digest", "waiting"); len(list) != 1 || list[0].DigestEvents != count || list[0].DeliveryID == "" {
			return fmt.Errorf("got %+v", list)
		}
		return nil
	})
	if out := command(0, "deliveries", "list", "digest"); !strings.Contains(out, "8 events") || !strings.Contains(out, "59m") {
		t.Errorf("the open digest is not listed:\n%s", out)
	}
	if out := command(0, "deliveries", "drop", "bad", ids[0], ids[1]); out != "dropped 2 deliveries of bad\n" {
		t.Errorf("got %q", out)
	}
	expect(ids[1], "bad", "dropped operator 1=503")
	// The last event in the queue was not read by the paused sink.
	if out := command(0, "deliveries", "drop", "paused", waiting[queued-1]); out != "dropped 1 delivery of paused\n" {
		t.Errorf("got %q", out)
	}
	expect(waiting[queued-1], "paused", "dropped operator")
	if dropped := list("bad", "dropped"); len(dropped) != 2 || dropped[0].Attempts == 0 {
		t.Errorf("got %+v, want two deliveries with attempts", dropped)
	}
	batch := list("batch", "retrying")[0]
	if out := command(0, "deliveries", "list", "batch", "--state", "retrying"); !strings.Contains(out, "DELIVERY") {
		t.Errorf("the list has no IDs of batches:\n%s", out)
	}
	command(0, "deliveries", "drop", "batch", batch.DeliveryID)
	expect(batch.EventID, "batch", "dropped operator")

	isFixed.Store(true)
	if out := command(0, "deliveries", "retry", "bad", ids[2], ids[3], ids[3]); out != "retried 2 deliveries of bad\n" {
		t.Errorf("got %q", out)
	}
	expect(ids[2], "bad", "delivered 1=503 2=204")
	expect(ids[4], "bad", "retrying 1=503")
	for _, tt := range []struct {
		args     string
		wantCode int
		want     string
	}{
		{"retry bad " + ids[2], 1, ids[2] + " was not retried: bad has no waiting or retrying delivery"},
		{"retry dead " + ids[2], 1, "use 'hubrelay deadletters replay' or 'drop'"},
		{"drop bad " + strings.Repeat("0", 24), 1, "bad has no waiting or retrying delivery"},
		{"drop bad x", 1, "x was not dropped"},
		{"drop batch " + ids[7], 1, "was not dropped"}, // it is in a batch
		{"retry paused " + ids[5], 1, "sink paused is paused"},
		{"retry missing " + ids[5], 1, "there is no sink"},
		{"retry bad", 2, "specify a sink and IDs"},
	} {
		if out := command(tt.wantCode, append([]string{"deliveries"}, strings.Fields(tt.args)...)...); !strings.Contains(out, tt.want) {
			t.Errorf("%s: got %q, want %q", tt.args, out, tt.want)
		}
	}
	if out := command(1, "deliveries", "retry", "bad", ids[2], ids[6], "-o", "json"); !strings.Contains(out,
		`{"changed":1,"unchanged":[{"id":"`+ids[2]+`","reason":"missing"}]}`) {
		t.Errorf("got %s", out)
	}
	if out := command(0, "audit", "-o", "jsonl"); !strings.Contains(out, "2 dropped, 0 unchanged: "+ids[0]+" "+ids[1]) {
		t.Errorf("got %s", out)
	}
	for _, i := range []int{3, 6} {
		expect(ids[i], "bad", "delivered 1=503 2=204")
	}
	// A replay can select what the sink has not accepted. What is scheduled stays so.
	var replayed struct{ Replayed, Skipped int }
	out := command(0, "sinks", "replay", "bad", "--after", "1h", "--failed-only", "-o", "json")
	if err := json.Unmarshal([]byte(out), &replayed); err != nil || replayed.Replayed != 2 {
		t.Errorf("got %s, want the two that were dropped", out)
	}
	expect(ids[0], "bad", "delivered 1=503 1=204")
	if out := command(0, "sinks", "replay", "bad", "--id", strings.Join([]string{ids[0], ids[2]}, ","), "--failed-only"); !strings.Contains(out, "bad receives 0 events again") {
		t.Errorf("got %q", out)
	}
	command(0, "sinks", "resume", "paused")
	expect(waiting[queued-2], "paused", "delivered")
	if hooks.counts()[waiting[queued-1]] > 0 {
		t.Error("a dropped event was delivered")
	}
}

// listedDelivery is the JSON of `deliveries list`.
type listedDelivery struct {
	EventID    string `json:"event_id"`
	DeliveryID string `json:"delivery_id"`
	State      string
	Attempts   int

	DigestEvents int `json:"digest_events"`
}
