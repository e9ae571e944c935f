package main_test

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/hubrelay/hubrelay/internal/testkit"
)

// TestEventsSearch finds events by what they concern and by who published them.
func TestEventsSearch(t *testing.T) {
	t.Parallel()
	data := filepath.Join(tempDir(t), "redis")
	d := serve(t, daemonConfig{redis: fmt.Sprintf("data_dir: %q", data)})
	command := func(wantCode int, args ...string) string {
		t.Helper()
		out, errOut, code := call(t, nil, "", append(args, "--admin", d.Admin)...)
		if code != wantCode {
			t.Fatalf("%v exited with %d: %s%s", args, code, out, errOut)
		}
		return out + errOut
	}
	if out := command(0, "events", "search"); out != "no events match\n" {
		t.Errorf("got %q", out)
	}
	if out := command(0, "events", "search", "-o", "json"); out != "[]\n" {
		t.Errorf("got %q", out)
	}
	event := `{"topic":"container.created","object":{"id":"o-%d"},"context":{"hub_id":"hub-1","containers":["c-%d"]}}`
	var ids []string
	for i := range 5 {
		ids = append(ids, d.Publish(t, "hub-1", "application/json", fmt.Sprintf(event, i, i%2), nil)...)
	}
	store := redisAt(t, filepath.Join(data, "redis.sock"))
	values := []string{"data", fmt.Sprintf(event, 9, 0)}
	if err := store.XAdd(t.Context(), &redis.XAddArgs{Stream: "hubrelay:inbox", Values: values}).Err(); err != nil {
		t.Fatal(err)
	}
	type found struct {
		ID        string `json:"id"`
		Topic     string `json:"topic"`
		HubID     string `json:"hub_id"`
		ObjectID  string `json:"object_id"`
		Publisher struct{ Kind, Name string }
	}
	search := func(args ...string) (list []found) {
		t.Helper()
		for line := range strings.Lines(command(0, append([]string{"events", "search", "-o", "jsonl"}, args...)...)) {
			var e found
			if err := json.Unmarshal([]byte(line), &e); err != nil {
				t.Fatal(err)
			}
			list = append(list, e)
		}
		return list
	}
	testkit.Eventually(t, "the entry of the inbox", func() error {
		if list := search("--publisher", "inbox"); len(list) != 1 || list[0].ObjectID != "o-9" || list[0].Publisher.Kind != "inbox" {
			return fmt.Errorf("got %+v", list)
		}
		return nil
	})
	for _, tt := range []struct {
		args string
		want int
	}{
		{"", 6},
		{"--container c-1", 2},
		{"--container c-0 --since 1h", 4},
		{"--publisher ops", 5},
		{"--object o-9 --publisher ops", 0},
		{"--topic container.* --hub hub-1 --limit 4", 4},
		{"--hub hub-2", 0},
		{"--until 1h", 0},
	} {
		if list := search(strings.Fields(tt.args)...); len(list) != tt.want {
			t.Errorf("%q: got %d events, want %d", tt.args, len(list), tt.want)
		}
	}
	if list := search("--object", "o-4"); len(list) != 1 || list[0].ID != ids[4] || list[0].Topic != "container.created" ||
		list[0].HubID != "hub-1" || list[0].Publisher.Kind != "key" || list[0].Publisher.Name != "ops" {
		t.Errorf("got %+v", list)
	}
	if out := command(0, "events", "search", "--limit", "2"); !strings.Contains(out, "PUBLISHER") ||
		!strings.Contains(out, "the newest 2") {
		t.Errorf("got\n%s", out)
	}
	for args, want := range map[string]string{
		"--limit 0":             "at least 1",
		"--since yesterday":     "--since",
		"-o xml":                "table, json or jsonl",
		"--since 1h --until 2h": "until is not later",
		"--topic [":             "topic",
	} {
		out, errOut, code := call(t, nil, "", append([]string{"events", "search", "--admin", d.Admin}, strings.Fields(args)...)...)
		if code == 0 || !strings.Contains(errOut, want) {
			t.Errorf("%q: exited with %d, %s%s, want %q", args, code, out, errOut, want)
		}
	}
}
