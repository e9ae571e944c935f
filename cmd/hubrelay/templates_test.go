package main_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/hubrelay/hubrelay/internal/redistest"
	"github.com/hubrelay/hubrelay/internal/testkit"
)

// TestTemplates has a webhook with a body template, one with a failing template, and a template file that changes.
func TestTemplates(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	store := redisAt(t, server.Socket)
	bodies := make(chan string, 100)
	hook := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		bodies <- r.Header.Get("Content-Type") + " " + string(body)
	}))
	t.Cleanup(hook.Close)
	dir := tempDir(t)
	body := writeFile(t, dir, "body.tmpl", `first {{ .Object.ID | toUpper }}`)
	sinks := fmt.Sprintf(`  good: {type: webhook, url: %q, allow_cidrs: [127.0.0.0/8], topics: [job.created],
    format: template,
    content_type: text/plain, template_file: %q}
  loops: {type: webhook, url: %q, allow_cidrs: [127.0.0.0/8], topics: [container.error], format: template,
    template: '{{ if eq .Object.ID "web-1" }}{{ range 1000000000 }}{{ end }}{{ end }}{}'}
`, hook.URL, body, hook.URL)
	s := daemonConfig{redis: fmt.Sprintf("url: %q", server.URL()), sinks: sinks}
	file := writeFile(t, dir, "hubrelay.yaml", s.renderYAML())
	if _, errOut, code := call(t, nil, "", "config", "check", "-c", file); code != 0 {
		t.Fatal(errOut)
	}
	out, _, code := call(t, nil, `{"topic":"job.created","object":{"id":"j1"},"context":{"hub_id":"h"}}`, "sinks",
		"explain", "-c", file, "--event", "-")
	if code != 0 || !strings.Contains(out, "  first J1\n") || !strings.Contains(out, "Content-Type: text/plain") {
		t.Errorf("explain shows\n%s", out)
	}
	d := serve(t, s)
	d.Publish(t, "hub-1", "application/x-ndjson", `{"topic":"job.created","object":{"id":"j1"}}`, nil)
	if got := <-bodies; got != "text/plain first J1" {
		t.Errorf("sent %q", got)
	}
	ids := d.Publish(t, "hub-1", "application/x-ndjson", `{"topic":"container.error","object":{"id":"web-1"}}`, nil)
	wantDead(t, store, "loops", ids, "line 1: takes more than 50000 steps", 1)
	if err := os.WriteFile(body, []byte(`second {{ .Object.ID }}`), 0o600); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "the changed template to be used", func() error {
		d.Publish(t, "hub-1", "application/x-ndjson", `{"topic":"job.created","object":{"id":"j1"}}`, nil)
		if got := <-bodies; got != "text/plain second j1" {
			return fmt.Errorf("sent %q", got)
		}
		return nil
	})

	bad := daemonConfig{redis: `url: "memory:"`, sinks: fmt.Sprintf("  hook:\n    type: webhook\n    url: %q\n    "+
		"allow_cidrs: [127.0.0.0/8]\n    format: template\n    template: |\n      {\"a\":\n      {{ .Objekt }}}\n",
		hook.URL)}
	_, errOut, code := call(t, nil, "", "config", "check", "-c", writeFile(t, dir, "bad.yaml", bad.renderYAML()))
	want := `sinks.hook.template: line 2, column 4: at .Objekt: there is no .Objekt here; ` +
		`did you mean "Object"? (with a sample of `
	if code != 1 || !strings.Contains(errOut, want) {
		t.Errorf("config check ended with %d and\n%s", code, errOut)
	}
	printed, _, _ := call(t, nil, "", "config", "print", "-c", file)
	if !strings.Contains(printed, "web-1") {
		t.Errorf("config print hides a template:\n%s", printed)
	}
	if text, _, _ := call(t, nil, "", "config", "schema"); !json.Valid([]byte(text)) ||
		!strings.Contains(text, `"template_file"`) {
		t.Error("config schema does not know template_file")
	}
}
