package main_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/hubrelay/hubrelay/internal/testkit"
)

// TestQuarantine corrects one rejected entry of the inbox, publishes another one after a change of the configuration, and
// drops the rest.
func TestQuarantine(t *testing.T) {
	t.Parallel()
	dir := tempDir(t)
	data := filepath.Join(dir, "redis")
	hooks := receive(t, func(w http.ResponseWriter, _ hook) { w.WriteHeader(http.StatusNoContent) })
	d := serve(t, daemonConfig{redis: fmt.Sprintf("data_dir: %q", data), sinks: webhookSink("hook", hooks.url+"/", "")})
	command := func(wantCode int, stdin string, args ...string) string {
		t.Helper()
		out, errOut, code := call(t, nil, stdin, append(args, "--admin", d.Admin)...)
		if code != wantCode {
			t.Fatalf("%v exited with %d: %s%s", args, code, out, errOut)
		}
		return out + errOut
	}
	if out := command(0, "", "quarantine", "list"); out != "the quarantine is empty\n" {
		t.Errorf("got %q", out)
	}
	store := redisAt(t, filepath.Join(data, "redis.sock"))
	add := func(text string) {
		t.Helper()
		values := []string{"data", text}
		if err := store.XAdd(t.Context(), &redis.XAddArgs{Stream: "hubrelay:inbox", Values: values}).Err(); err != nil {
			t.Fatal(err)
		}
	}
	list := func(want int) []map[string]any {
		t.Helper()
		var list []map[string]any
		testkit.Eventually(t, fmt.Sprint(want, " entries in the quarantine"), func() error {
			list = nil
			for line := range strings.Lines(command(0, "", "quarantine", "list", "--json")) {
				var e map[string]any
				if err := json.Unmarshal([]byte(line), &e); err != nil {
					return err
				}
				list = append(list, e)
			}
			if len(list) != want {
				return fmt.Errorf("got %v, want %d", list, want)
			}
			return nil
		})
		return list
	}
	add(`{"topic":"no.such.topic","context":{"hub_id":"hub-1"}}`)
	add("\x1b[31mnot JSON")
	id, _ := list(2)[0]["id"].(string)
	if out := command(0, "", "quarantine", "list"); !strings.Contains(out, "no.such.topic") || strings.Contains(out, "\x1b") ||
		!strings.Contains(out, "inbox") || !strings.Contains(out, id) {
		t.Errorf("got the list\n%s", out)
	}
	if out := command(0, "", "quarantine", "show", id); !strings.Contains(out, `"topic": "no.such.topic"`) {
		t.Errorf("got\n%s", out)
	}
	if out := command(1, "", "quarantine", "replay", id); !strings.Contains(out, "no.such.topic") {
		t.Errorf("an unchanged replay: got\n%s", out)
	}
	if out := command(2, "", "quarantine", "replay", id, "--data", ""); !strings.Contains(out, "--data is empty") {
		t.Errorf("an empty name: got\n%s", out)
	}
	if out := command(1, "\xff", "quarantine", "replay", id, "--data", "-"); !strings.Contains(out, "not UTF-8") {
		t.Errorf("invalid bytes: got\n%s", out)
	}
	corrected := `{"topic":"job.created","context":{"hub_id":"hub-1"},"mark":1}`
	if out := command(0, corrected, "quarantine", "replay", id, "--data", "-"); !strings.Contains(out, "job.created of hub hub-1") {
		t.Errorf("got\n%s", out)
	}
	testkit.Eventually(t, "the delivery of the corrected event", func() error {
		if n := len(hooks.of("/")); n != 1 {
			return fmt.Errorf("got %d deliveries, want 1", n)
		}
		return nil
	})
	for _, c := range [][]string{{"show", id}, {"replay", id}, {"show", "x"}} {
		if out := command(1, "", append([]string{"quarantine"}, c...)...); !strings.Contains(out, "the quarantine has no entry") {
			t.Errorf("%v: got\n%s", c, out)
		}
	}
	rest, _ := list(1)[0]["id"].(string)
	if out := command(0, "", "quarantine", "show", rest); strings.Contains(out, "\x1b") || !strings.Contains(out, "not JSON") {
		t.Errorf("got %q", out)
	}
	if out := command(1, "", "quarantine", "drop", rest, id); !strings.Contains(out, "dropped 1 entry") ||
		!strings.Contains(out, "not in the quarantine: 1 of 2 IDs") {
		t.Errorf("got\n%s", out)
	}
	add("{}")
	add("[]")
	list(2)
	if out := command(2, "", "quarantine", "drop", "--all"); !strings.Contains(out, "--yes") {
		t.Errorf("got\n%s", out)
	}
	if out := command(0, "", "quarantine", "drop", "--all", "--yes"); out != "dropped 2 entries\n" {
		t.Errorf("got %q", out)
	}
	if out := command(0, "", "audit", "--action", "quarantine"); !strings.Contains(out, "with other content, topic job.created") ||
		!strings.Contains(out, "2 of 2 dropped") {
		t.Errorf("got the audit log\n%s", out)
	}
}
