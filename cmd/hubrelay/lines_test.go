package main_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/client"
)

// TestExplain_MatchesDeliveredRequests publishes to sinks of several types and compares the output of explain with
// the received requests.
func TestExplain_MatchesDeliveredRequests(t *testing.T) {
	t.Parallel()
	dir := tempDir(t)
	archive, command := filepath.Join(dir, "archive.jsonl"), filepath.Join(dir, "command")
	alert := make(chan string, 10)
	oncall := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		alert <- string(body)
		w.WriteHeader(http.StatusAccepted)
	}))
	t.Cleanup(oncall.Close)
	const key = "s3cret7890abcdef0123456789abcdef"
	file := writeFile(t, dir, "hubrelay.yaml", daemonConfig{
		redis: `url: "memory:"`,
		sinks: `  archive: {type: file, path: archive.jsonl}
  lines: {type: stdout}
` + fmt.Sprintf("  command: {type: exec, command: [sh, -c, 'cat >> \"$INTO\"'], env: [%q]}\n", "INTO="+command) +
			fmt.Sprintf("  oncall: {type: pagerduty, routing_key: %s, url: %q, allow_cidrs: [127.0.0.0/8]}\n", key,
				oncall.URL+"/v2/enqueue"),
	}.renderYAML())
	d := serveFile(t, file)
	const event = `{"topic":"container.error","object":{"id":"web-1","error":"no <image>"},` +
		`"context":{"hub_id":"hub-1","containers":["c1"]},"n":1.0}`
	d.Publish(t, "hub-1", "application/json", event, nil)
	out, errOut, code := call(t, nil, event, "sinks", "explain", "-c", file, "--event", "-", "--json")
	if code != 0 || strings.Contains(out, "s3cret") {
		t.Fatalf("explain ended with %d:\n%s%s", code, out, errOut)
	}
	read := func(path string) func() string {
		return func() string {
			text, _ := os.ReadFile(path)
			return string(text)
		}
	}
	got := map[string]func() string{
		"archive": read(archive), "lines": d.Out.String, "command": read(command),
		"oncall": func() string {
			select {
			case body := <-alert:
				return plainEvent(t, body)
			default:
				return ""
			}
		},
	}
	for line := range strings.Lines(out) {
		var e struct {
			Sink    string
			Request struct{ Payload string }
		}
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatal(err)
		}
		want := e.Request.Payload
		if e.Sink == "oncall" {
			want = plainEvent(t, want)
		}
		testkit.Eventually(t, "the request in explain of "+e.Sink, func() error {
			if text := got[e.Sink](); withoutMetadata(text) != withoutMetadata(want) || want == "" {
				return fmt.Errorf("got %q, explained was %q", text, want)
			}
			return nil
		})
		delete(got, e.Sink)
	}
	if len(got) > 0 {
		t.Errorf("explain has no output for %v", got)
	}
}

// withoutMetadata removes the ID and time that explain makes up.
func withoutMetadata(line string) string {
	return regexp.MustCompile(`,"id":"[0-9a-f]{24}","time":"[^"]+"`).ReplaceAllString(line, "")
}

// plainEvent returns an event of PagerDuty without key, time and indentation.
func plainEvent(t *testing.T, text string) string {
	t.Helper()
	var e map[string]any
	if err := json.Unmarshal([]byte(text), &e); err != nil {
		t.Fatal(err)
	}
	delete(e, "routing_key")
	if payload, ok := e["payload"].(map[string]any); ok {
		delete(payload, "timestamp")
	}
	plain, err := json.Marshal(e)
	if err != nil {
		t.Fatal(err)
	}
	return string(plain)
}

// TestMetadata_SameEverywhere compares the ID that publishing returns with those in streams, files and webhooks.
func TestMetadata_SameEverywhere(t *testing.T) {
	t.Parallel()
	dir := tempDir(t)
	headers := make(chan string, 1)
	receiver := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		headers <- r.Header.Get("webhook-id")
	}))
	t.Cleanup(receiver.Close)
	d := serveFile(t, writeFile(t, dir, "hubrelay.yaml", daemonConfig{
		redis: `url: "memory:"`,
		sinks: "  archive: {type: file, path: archive.jsonl}\n" +
			fmt.Sprintf("  hook: {type: webhook, url: %q, allow_cidrs: [127.0.0.0/8]}\n", receiver.URL),
	}.renderYAML()))
	c := &client.Client{URL: "http://" + d.Public, Key: opsKey, Hub: "hub-1"}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	connected, streamed := make(chan struct{}, 1), make(chan relay.Notification, 1)
	go func() {
		o := client.ListenOptions{Metadata: true, OnConnected: func() { connected <- struct{}{} }}
		for n, err := range c.Listen(ctx, o) {
			if err != nil {
				t.Error(err)
			}
			streamed <- n
		}
	}()
	<-connected
	ids, err := d.publishNumbered(ctx, 0, 1)
	if err != nil || len(ids) != 1 {
		t.Fatal(ids, err)
	}
	n := <-streamed
	metadata := fmt.Sprintf(`,"id":%q,"time":%q`, ids[0], n.StoredAt().Format(time.RFC3339))
	if n.ID != ids[0] || !strings.Contains(string(n.Data), metadata) || n.StoredAt().IsZero() {
		t.Errorf("published %s, streamed %q: %s", ids[0], n.ID, n.Data)
	}
	if got := <-headers; got != ids[0] {
		t.Errorf("published %s, webhook-id is %s", ids[0], got)
	}
	testkit.Eventually(t, "the line of the file", func() error {
		if text, _ := os.ReadFile(filepath.Join(dir, "archive.jsonl")); !strings.Contains(string(text), metadata) {
			return fmt.Errorf("got %s, want %s", text, metadata)
		}
		return nil
	})
}
