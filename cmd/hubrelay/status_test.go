package main_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/hubrelay/hubrelay/internal/adminapi"
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
