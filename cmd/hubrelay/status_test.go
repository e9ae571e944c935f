package main_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/hubrelay/hubrelay/internal/adminapi"
	"github.com/hubrelay/hubrelay/internal/redistest"
	"github.com/hubrelay/hubrelay/internal/testkit"
)

func TestStatus(t *testing.T) {
	t.Parallel()
	d := serve(t, daemonConfig{redis: `url: "memory:"`, sinks: "  written: {type: file, path: ./written.jsonl}"})
	const events = 3
	for range events {
		d.Publish(t, "hub-1", "application/json", plain, nil)
	}
	show := func() (s adminapi.Status) {
		t.Helper()
		out, errOut, code := call(t, nil, "", "status", "-o", "json", "--admin", d.Admin)
		if err := json.Unmarshal([]byte(out), &s); err != nil || code != 0 {
			t.Fatalf("got %d %v: %s%s", code, err, out, errOut)
		}
		return s
	}
	// memory: counts the entries as Redis 7 does, or not at all.
	if s := show(); s.Node != "node-0" || len(s.Nodes) != 1 || s.NotReady != "" || s.Log.Events < events ||
		s.Log.OldestAt.IsZero() || s.StartedAt.IsZero() || s.ConfigWarning != "" {
		t.Errorf("got %+v", s)
	}
	out, errOut, code := call(t, nil, "", "status", "--admin", d.Admin)
	for _, want := range []string{"node-0", "ready", "yes", "storage", "0 clients on node-0"} {
		if !strings.Contains(out, want) || code != 0 {
			t.Errorf("got %d, and %q is missing: %s%s", code, want, out, errOut)
		}
	}
}

// Each node lists all nodes. It reads the state of the others from Redis.
func TestNodesList(t *testing.T) {
	t.Parallel()
	store := redistest.Start(t)
	file := writeFile(t, tempDir(t), "hubrelay.yaml", daemonConfig{redis: fmt.Sprintf("url: %q", store.URL())}.renderYAML())
	first, second := serveFile(t, file), serveFile(t, file)
	second.connect(t, readerKey, "hub-1", "")
	var nodes []adminapi.Node
	testkit.Eventually(t, "the client of the other node", func() error {
		out, errOut, code := call(t, nil, "", "nodes", "list", "-o", "json", "--admin", first.Admin)
		if err := json.Unmarshal([]byte(out), &nodes); err != nil || code != 0 {
			return fmt.Errorf("got %d %w: %s%s", code, err, out, errOut)
		}
		if len(nodes) != 2 || nodes[0].Clients+nodes[1].Clients != 1 {
			return fmt.Errorf("got %+v", nodes)
		}
		return nil
	})
	for i, n := range nodes {
		if n.Name != fmt.Sprintf("node-%d", i) || n.Host == "" || n.Version == "" || n.NotReady != "" || n.StartedAt.IsZero() ||
			n.SeenAt.IsZero() || n.ConfigWarning != "" {
			t.Errorf("got %+v", n)
		}
	}
	out, errOut, code := call(t, nil, "", "nodes", "list", "--admin", second.Admin)
	if code != 0 || !strings.Contains(out, "node-0") || !strings.Contains(out, "node-1") {
		t.Errorf("got %d: %s%s", code, out, errOut)
	}
}

// Operators see the configuration of a node without secrets, also after a reload.
func TestConfigOfNode(t *testing.T) {
	t.Parallel()
	c := daemonConfig{redis: `url: "memory:"`, sinks: "  written: {type: file, path: ./written.jsonl}"}
	file := writeFile(t, tempDir(t), "hubrelay.yaml", c.renderYAML())
	d := serveFile(t, file)
	show := func(path string, v any) {
		t.Helper()
		r, err := d.GetAdmin(t.Context(), path)
		if err != nil || r.Status != 200 || json.Unmarshal([]byte(r.Body), &struct{ Data any }{v}) != nil {
			t.Fatalf("%s: got %v %d %s", path, err, r.Status, r.Body)
		}
		if strings.Contains(r.Body, opsKey) {
			t.Errorf("%s shows a key: %s", path, r.Body)
		}
	}
	var got adminapi.Config
	show("/api/config", &got)
	if len(got.Versions) != 1 || got.Warning != "" || !strings.Contains(got.Text, "written:") || got.Node != "node-0" {
		t.Errorf("got %+v", got)
	}
	c.sinks += "\n  added: {type: file, path: ./added.jsonl}"
	d.reconfigure(t, file, c, 1)
	show("/api/config", &got)
	var first adminapi.ConfigText
	show("/api/config/versions/1", &first)
	if len(got.Versions) != 2 || got.Versions[0].Number != 2 || !strings.Contains(got.Text, "added:") ||
		strings.Contains(first.Text, "added:") || !strings.Contains(first.Text, "written:") {
		t.Errorf("got versions %v, the first:\n%s", got.Versions, first.Text)
	}
	if r, err := d.GetAdmin(t.Context(), "/api/config/versions/3"); err != nil || r.Status != 404 {
		t.Errorf("a version that does not exist: got %v %d", err, r.Status)
	}
}
