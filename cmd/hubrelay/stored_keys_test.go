package main_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/gorilla/websocket"

	"github.com/hubrelay/hubrelay/internal/redistest"
	"github.com/hubrelay/hubrelay/internal/testkit"
)

// TestKeys creates, rotates and revokes keys with one node and uses them at another.
func TestKeys(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	nodes := [2]*daemon{}
	for i := range nodes {
		nodes[i] = serve(t, daemonConfig{redis: fmt.Sprintf("url: %q", server.URL())})
	}
	manage := func(wantCode int, args ...string) string {
		t.Helper()
		out, errOut, code := call(t, nil, "", append(append([]string{"keys"}, args...), "--admin", nodes[0].Admin)...)
		if code != wantCode {
			t.Fatalf("keys %v exited with %d: %s %s", args, code, out, errOut)
		}
		if wantCode != 0 {
			return errOut
		}
		return strings.TrimSpace(out)
	}
	publishTo := func(node *daemon, key, topic string) testkit.Reply {
		t.Helper()
		return node.Do(t, testkit.Request{
			Method: "POST", Key: key, Hub: "hub-1", ContentType: "application/json",
			Body: fmt.Sprintf(`{"topic":%q}`, topic),
		})
	}
	publish := func(key, topic string) testkit.Reply { return publishTo(nodes[1], key, topic) }
	// until waits until both nodes answer a key with a status.
	until := func(key string, status int) {
		t.Helper()
		testkit.Eventually(t, "the key to be applied", func() error {
			for _, node := range nodes {
				if r := publishTo(node, key, "job.created"); r.Status != status {
					return fmt.Errorf("%d %s", r.Status, r.Body)
				}
			}
			return nil
		})
	}
	first := manage(0, "create", "ci", "--account", "acme", "--hub", "hub-1", "--capability", "notifications-publish",
		"--topic", "job.*", "--expires", "1h")
	until(first, http.StatusAccepted)
	wantError(t, publish(first, "container.created"), "403.permissions", "", "job.*")
	wantError(t, nodes[1].Do(t, testkit.Request{Method: "GET", Key: first, Hub: "hub-2"}), "403.wrong-hub", "", "hub-2")

	streams := [2]*socket{nodes[0].connect(t, first, "hub-1", ""), nodes[1].connect(t, first, "hub-1", "")}
	second := manage(0, "rotate", "ci", "--overlap", "1h")
	until(second, http.StatusAccepted)
	until(first, http.StatusAccepted)
	third := manage(0, "rotate", "ci", "--overlap", "0s")
	until(third, http.StatusAccepted)
	until(first, http.StatusUnauthorized)
	until(second, http.StatusUnauthorized)
	for _, s := range streams {
		if closed := s.closed(t, websocket.ClosePolicyViolation); !strings.Contains(closed.Text, "no longer opens") {
			t.Errorf("the stream of the replaced secret ended with %q", closed.Text)
		}
	}

	streams = [2]*socket{nodes[0].connect(t, third, "hub-1", ""), nodes[1].connect(t, third, "hub-1", "")}
	var listed struct {
		Origin, Name string
		Used         string `json:"last_used_at"`
	}
	list := strings.Split(manage(0, "list", "--json"), "\n")
	if err := json.Unmarshal([]byte(list[0]), &listed); err != nil || len(list) != 3 || listed.Name != "ci" ||
		listed.Origin != "stored" || listed.Used == "" || strings.Contains(strings.Join(list, ""), "0001-01-01") {
		t.Errorf("the keys are %s (%v)", list, err)
	}
	if out := manage(0, "list"); strings.Contains(out, third) || !strings.Contains(out, "configuration") {
		t.Errorf("the list is\n%s", out)
	}
	manage(0, "revoke", "ci")
	for _, s := range streams {
		if closed := s.closed(t, websocket.ClosePolicyViolation); !strings.Contains(closed.Text, "no longer opens") {
			t.Errorf("the stream of the revoked key ended with %q", closed.Text)
		}
	}
	until(third, http.StatusUnauthorized)

	narrow := manage(0, "create", "narrow", "--hub", "*", "--network", "192.0.2.0/24", "--capability",
		"notifications-publish")
	testkit.Eventually(t, "the network of the key to be checked", func() error {
		if r := publish(narrow, "job.created"); !strings.Contains(r.Body, "must not be used from this address") {
			return fmt.Errorf("%d %s", r.Status, r.Body) // 429 between two failures per second
		}
		return nil
	})
	for _, tt := range []struct{ args, want string }{
		{"create ops --hub *", "already"},
		{"create narrow --hub *", "already"},
		{"create a/b --hub *", "valid key name"},
		{"create x --hub * --capability fly", `--capability "fly": `},
		{"create x --hub hub-1 --hub a\x7fb", `--hub "a\x7fb": contains`},
		{"create x --hub * --account \x7f", `--account "\x7f": contains`},
		{"create x --hub * --network 10.0.0.0/99 --network 10.0.0.0/98", `; --network "10.0.0.0/98": `},
		{"create x --hub * --topic UPPER", `--topic "UPPER": `},
		{"create x --hub * --topic containr.*", "the nearest topic is container.created"},
		{"create ops --hub * --topic job.*", "--topic has no effect"},
		{"rotate ops", "configuration"},
		{"rotate nobody", "404.key"},
		{"rotate narrow --overlap 1000h", "overlap"},
		{"revoke nobody", "404.key"},
	} {
		if errOut := manage(1, strings.Fields(tt.args)...); !strings.Contains(errOut, tt.want) {
			t.Errorf("keys %s: %q does not mention %q", tt.args, errOut, tt.want)
		}
	}
	for _, tt := range []struct{ args, want string }{
		{"create x", "--hub is missing"},
		{"create x --hub * --expires soon", "2027-01-31"},
		{"create x --hub * --expires 2020-01-31", "--expires 2020-01-31 is in the past"},
		{"create x --hub * --expires 0s", "--expires 0s is in the past"},
	} {
		if errOut := manage(2, strings.Fields(tt.args)...); !strings.Contains(errOut, tt.want) {
			t.Errorf("keys %s: %q does not mention %q", tt.args, errOut, tt.want)
		}
	}
	out, _, code := call(t, nil, "", "audit", "--admin", nodes[0].Admin, "--action", "keys")
	if code != 0 || strings.Contains(out, third) {
		t.Errorf("the audit log is %d\n%s", code, out)
	}
	for _, action := range []string{"keys.create", "keys.rotate", "keys.revoke"} {
		if !strings.Contains(out, action) {
			t.Errorf("%s is missing in the audit log\n%s", action, out)
		}
	}
}
