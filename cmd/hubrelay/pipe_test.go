package main_test

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/gorilla/websocket"
	"github.com/redis/go-redis/v9"

	"github.com/hubrelay/hubrelay/internal/redistest"
	"github.com/hubrelay/hubrelay/internal/testkit"
)

// everyKind is a notification with all members that must be preserved. Clients receive it as everyKindOut.
const (
	everyKind = `{"topic":"container.instance.health.status.changed", "flags":{"internal":true},
	"object":{"id":"5f9c2b1e8a3d4c0017e5a921","state":"unhealthy","error":"","big":9007199254740993},
	"context":{"hub_id":"hub-1","account_id":"acme","containers":["c-ü"],"clusters":["production"],
	  "extra":{"n":[1.50,-0.0e-10,123456789012345678901234567890],"text":"é \u00e9 \ud83d\ude00 😀 \/"}},
	"seq":18446744073709551617}`
	everyKindOut = `{"topic":"container.instance.health.status.changed",` +
		`"object":{"id":"5f9c2b1e8a3d4c0017e5a921","state":"unhealthy","error":"","big":9007199254740993},` +
		`"context":{"hub_id":"hub-1","account_id":"acme","environments":[],"dns_zones":[],"clusters":["production"],` +
		`"containers":["c-ü"],` +
		`"extra":{"n":[1.50,-0.0e-10,123456789012345678901234567890],"text":"é \u00e9 \ud83d\ude00 😀 \/"}},` +
		`"flags":null,"seq":18446744073709551617}`
)

// logged returns the ids and the data of the log in order.
func logged(t *testing.T, c *redis.Client) (ids, data []string) {
	t.Helper()
	entries, err := c.XRange(t.Context(), "hubrelay:log:{0}", "-", "+").Result()
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		ids = append(ids, fmt.Sprint(e.Values["id"]))
		data = append(data, fmt.Sprint(e.Values["data"]))
	}
	return ids, data
}

// TestPublish_ReachesWebsocketAndWebhook publishes over HTTP and with redis-cli, and compares the output of a
// websocket and of a webhook.
func TestPublish_ReachesWebsocketAndWebhook(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	store := redisAt(t, server.Socket)
	hooks := receive(t, nil)
	d := serve(t, daemonConfig{redis: fmt.Sprintf("url: %q", server.URL()), sinks: webhookSink("hook", hooks.url+"/",
		"")})
	ws := d.connect(t, opsKey, "hub-1", "")
	other := d.connect(t, opsKey, "hub-2", "")
	errorsOnly := d.connect(t, opsKey, "hub-1", "&topics=*.error,!stack.*")

	var ids []string
	ids = append(ids, d.Publish(t, "hub-1", "application/json", everyKind, nil)...)
	ids = append(ids, d.Publish(t, "hub-1", "application/json", "["+plain+","+plain+","+plain+"]", nil)...)
	ids = append(ids, d.Publish(t, "hub-1", "application/x-ndjson", "\n"+lines(2)+"\r\n"+plain, nil)...)
	repeat := map[string]string{"Idempotency-Key": "once"}
	first := d.Publish(t, "hub-1", "application/json", plain, repeat)
	if again := d.Publish(t, "hub-1", "application/json", plain, repeat); !slices.Equal(first, again) {
		t.Errorf("the repeat was answered %v, the first %v", again, first)
	}
	ids = append(ids, first...)
	publishToInbox(t, server.Socket, store)

	const all = 1 + 3 + 3 + 1 + 3
	frames := ws.wait(t, all)
	logIDs, logData := logged(t, store)
	if !slices.Equal(frames, logData) {
		t.Errorf("the websocket got\n%s\nthe log is\n%s", strings.Join(frames, "\n"), strings.Join(logData, "\n"))
	}
	if len(logIDs) != all || !slices.Equal(logIDs[:len(ids)], ids) {
		t.Errorf("the log holds %v, want %d that begin with %v", logIDs, all, ids)
	}
	if frames[0] != everyKindOut || frames[all-3] != everyKindOut {
		t.Errorf("HTTP made it\n%s\nthe inbox\n%s\nwant\n%s", frames[0], frames[all-3], everyKindOut)
	}
	for i, f := range frames {
		if !strings.Contains(f, `"flags":null`) || len(logIDs[i]) != 24 || i > 0 && logIDs[i] <= logIDs[i-1] &&
			i < len(ids) {
			t.Errorf("%s: %s", logIDs[i], f)
		}
	}
	testkit.Eventually(t, "every webhook", hooks.receivedAll(logIDs))
	bodies := make(map[string]string)
	for _, h := range hooks.of("/") {
		if h.bad != nil || h.attempt != 1 {
			t.Errorf("attempt %d of %s: %v", h.attempt, h.id, h.bad)
		}
		bodies[h.id] = h.body
	}
	for i, id := range logIDs {
		if bodies[id] != logData[i] {
			t.Errorf("the webhook got\n%s\nwant\n%s", bodies[id], logData[i])
		}
	}
	d.Publish(t, "hub-2", "application/json", `{"topic":"job.created","object":{"id":"the only one"},"context":{}}`,
		nil)
	if got := objectIDs(other.wait(t, 1)); got[0] != "the only one" {
		t.Errorf("the socket of another hub got %v", got)
	}
	if got := objectIDs(errorsOnly.wait(t, 1)); len(got) != 1 || got[0] != "last" {
		t.Errorf("the socket with topics= got %v", got)
	}
}

// publishToInbox adds three valid entries and invalid ones between them, and waits until the inbox is empty.
func publishToInbox(t *testing.T, socketPath string, store *redis.Client) {
	t.Helper()
	add := func(field, value string) {
		t.Helper()
		out, err := exec.Command("redis-cli", "-s", socketPath, "XADD", "hubrelay:inbox", "*", field,
			value).CombinedOutput()
		if err != nil {
			t.Fatalf("redis-cli: %v\n%s", err, out)
		}
	}
	bad := []struct{ field, value, reason string }{
		{"data", `{"topic":"container.created","context":`, "400.invalid-syntax"},
		{"data", `{"topic":"container.craeted","context":{"hub_id":"hub-1"}}`, "container.created"},
		{"data", `{"topic":"container.created","context":{"account_id":"acme"}}`, "/context/hub_id"},
		{"data", `{"topic":"container.created"}`, "/context"},
		{"data", `{"topic":"container.created","context":{"hub_id":7}}`, "/context/hub_id"},
		{"data", "{\"topic\":\"container.created\",\"context\":{\"hub_id\":\"\xff\"}}", "UTF-8"},
		{"data", `{"topic":"container.created","topic":"container.created","context":{"hub_id":"hub-1"}}`, "twice"},
		{"data", strings.Repeat("[", 1000), "64"},
		{"payload", `{"topic":"container.created","context":{"hub_id":"hub-1"}}`, "data"},
	}
	add("data", everyKind)
	for _, b := range bad {
		add(b.field, b.value)
	}
	add("data", `{"topic":"stack.error","object":{"error":"e"},"context":{"hub_id":"hub-1"}}`)
	add("data", `{"topic":"container.error","object":{"id":"last","error":"e"},"context":{"hub_id":"hub-1"}}`)
	testkit.Eventually(t, "the inbox to be empty", func() error {
		n, err := store.XLen(t.Context(), "hubrelay:inbox").Result()
		if err == nil && n > 0 {
			err = fmt.Errorf("%d entries are left", n)
		}
		return err
	})
	refused, err := store.XRange(t.Context(), "hubrelay:quarantine", "-", "+").Result()
	if err != nil || len(refused) != len(bad) {
		t.Fatalf("the quarantine holds %v, %v, want %d entries", refused, err, len(bad))
	}
	for i, b := range bad {
		want := b.value
		if b.field != "data" {
			text, err := json.Marshal(map[string]string{b.field: b.value}) // so the wrong name is visible
			if err != nil {
				t.Fatal(err)
			}
			want = string(text)
		}
		if got := refused[i].Values; got["data"] != want || !strings.Contains(fmt.Sprint(got["reason"]), b.reason) {
			t.Errorf("%q is in the quarantine as %q, want a reason with %q", want, got, b.reason)
		}
	}
}

// TestSlowSocketIsClosed has a client that does not read until the relay closes it, and another one that reads.
func TestSlowSocketIsClosed(t *testing.T) {
	t.Parallel()
	d := serve(t, daemonConfig{redis: "url: \"memory:\""})
	quick := d.connect(t, opsKey, "hub-1", "")
	large, err := json.Marshal(strings.Repeat("x", 250_000))
	if err != nil {
		t.Fatal(err)
	}
	body := fmt.Sprintf(`{"topic":"job.created","context":{"padding":%s}}`, large)
	var ids []string
	for tries := 1; ; tries++ {
		slow, refused := d.upgrade(t, "?token="+d.Token(t, opsKey, "hub-1"), nil)
		if slow == nil {
			t.Fatal(refused)
		}
		for first := len(ids); d.serves(t, 2); {
			if len(ids) == first+400 {
				t.Fatal("100 MB wait for a client that does not read, and it was not closed")
			}
			ids = append(ids, d.Publish(t, "hub-1", "application/json", body, nil)...)
			quick.wait(t, len(ids))
		}
		ended := listenOn(slow).end(t)
		var closed *websocket.CloseError
		switch {
		case errors.As(ended, &closed) && closed.Code == 1013 && strings.Contains(closed.Text, "slow"):
		case !errors.As(ended, &closed) && tries < 5:
			t.Logf("the close frame was not read in time: %v",
				ended) // the relay disconnects a client that does not read the close frame
			continue
		default:
			t.Errorf("it was closed with %v", ended)
		}
		break
	}
	ids = append(ids, d.Publish(t, "hub-1", "application/json", plain, nil)...)
	if got := objectIDs(quick.wait(t, len(ids))); !slices.Equal(got, ids) {
		t.Errorf("the client that reads got %d events that are not the %d published", len(got), len(ids))
	}
}

// serves reports whether the daemon has this number of clients and closes none.
func (d *daemon) serves(t *testing.T, clients int) bool {
	t.Helper()
	r, err := d.GetAdmin(t.Context(), "/api/connections?limit=1000")
	if err != nil {
		t.Fatal(err)
	}
	var page struct {
		Data []struct{ State string }
	}
	if err = cmp.Or(err, json.Unmarshal([]byte(r.Body), &page)); err != nil || r.Status != http.StatusOK {
		t.Fatal(r.Status, err)
	}
	n := 0
	for _, c := range page.Data {
		if c.State != "closing" {
			n++
		}
	}
	return n >= clients
}
