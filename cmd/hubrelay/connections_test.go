package main_test

import (
	"encoding/json"
	"strings"
	"testing"
)

// TestConnectionsList lists the clients of a daemon.
func TestConnectionsList(t *testing.T) {
	t.Parallel()
	d := serve(t, daemonConfig{redis: `url: "memory:"`})
	list := func(more ...string) string {
		t.Helper()
		out, errOut, code := call(t, []string{"HUBRELAY_ADMIN=" + d.Admin}, "", append([]string{"connections", "list"},
			more...)...)
		if code != 0 || errOut != "" {
			t.Fatalf("connections list %v: %d %s", more, code, errOut)
		}
		return out
	}
	if out := list(); out != "no clients\n" {
		t.Errorf("got %q, want no clients", out)
	}
	d.connect(t, opsKey, "hub-1", "&topics=job.*")
	d.connect(t, readerKey, "", "")
	out := list()
	if lines := strings.Split(strings.TrimSpace(out), "\n"); len(lines) != 3 ||
		strings.Join(strings.Fields(lines[0]), " ") != "ADDRESS TYPE STATE CONNECTED QUEUED KEY HUB TOPICS" ||
		!strings.Contains(lines[1], "hub-1") || !strings.Contains(lines[2], "account acme") {
		t.Errorf("the list is\n%s", out)
	}
	var one struct {
		Hub   string `json:"hub_id"`
		Key   string
		State string
	}
	if err := json.Unmarshal([]byte(list("--json", "--hub", "hub-1", "--key", "ops")), &one); err != nil ||
		one.Hub != "hub-1" || one.Key != "ops" || one.State != "live" {
		t.Errorf("%v: %+v", err, one)
	}
	if out := list("--key", "nobody"); out != "no clients match\n" {
		t.Errorf("got %q, want no clients of the key", out)
	}
	if strings.Contains(out, opsKey) || strings.Contains(out, readerKey) {
		t.Errorf("a key is shown:\n%s", out)
	}
}
