package main_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hubrelay/hubrelay/internal/testkit"
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
			if text := got[e.Sink](); text != want || want == "" {
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
