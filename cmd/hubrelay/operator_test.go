package main_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/hubrelay/hubrelay/internal/redistest"
	"github.com/hubrelay/hubrelay/internal/testkit"
)

// TestOperatorQuestions answers the questions of an operator, each with one command at either of two nodes.
func TestOperatorQuestions(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	var isFixed atomic.Bool
	hooks := receive(t, func(w http.ResponseWriter, h hook) {
		switch {
		case h.path == "/dead" && !isFixed.Load():
			w.WriteHeader(http.StatusUnprocessableEntity)
		case h.path == "/retry":
			w.WriteHeader(http.StatusServiceUnavailable)
		default:
			w.WriteHeader(http.StatusNoContent)
		}
	})
	sink := func(name, more string) string {
		return scheduledWebhookSink(name, hooks.url+"/"+name, "1h", more)
	}
	config := daemonConfig{
		redis: fmt.Sprintf("url: %q", server.URL()),
		keys:  "    - {name: ci, key: ci-key-0123456789abcdef, account_id: acme, hubs: [hub-1], capabilities: [notifications-publish]}\n",
		sinks: sink("good", "") + sink("dead", "") + sink("retry", "") + sink("jobs", `, topics: ["job.*"]`) +
			sink("cond", `, when: 'object.state == "failed"'`) + "history: {clients: true}\n",
	}
	nodes := [2]*daemon{serve(t, config), serve(t, config)}
	one, two := nodes[0], nodes[1]
	ask := func(args ...string) (answer string) {
		t.Helper()
		for _, node := range nodes { // both give the same answer
			out, errOut, code := call(t, nil, "", append(args, "--admin", node.Admin)...)
			if code != 0 {
				t.Fatalf("%v exited with %d: %s%s", args, code, out, errOut)
			}
			answer = out
		}
		return answer
	}
	command := func(node *daemon, args ...string) {
		t.Helper()
		if out, errOut, code := call(t, nil, "", append(args, "--admin", node.Admin)...); code != 0 {
			t.Fatalf("%v exited with %d: %s%s", args, code, out, errOut)
		}
	}
	one.connect(t, readerKey, "hub-1", "")
	two.connect(t, "ci-key-0123456789abcdef", "hub-1", "")
	two.connect(t, readerKey, "hub-2", "")
	body := `{"topic":"container.error","object":{"id":"o-1","state":"running"},"context":{"hub_id":"hub-1",` +
		`"account_id":"acme","containers":["c-1"]}}`
	reply := two.Do(t, testkit.Request{
		Method: "POST", Key: "ci-key-0123456789abcdef", Hub: "hub-1", ContentType: "application/json", Body: body,
	})
	var published struct{ Data struct{ IDs []string } }
	if err := json.Unmarshal([]byte(reply.Body), &published); err != nil || len(published.Data.IDs) != 1 {
		t.Fatalf("got %+v, %v", reply, err)
	}
	id := published.Data.IDs[0]
	for _, q := range []struct {
		question, command string
		want              []string
	}{
		{"was X delivered to Y and when", "events show " + id, []string{"good  delivered", "#1   delivered  204", "retry  retrying, next attempt in "}},
		{"why not", "events show " + id, []string{
			"jobs  not matched: ", `cond  not matched: when: object.state == "failed"`, "dead  dead: the destination does not accept it",
		}},
		{"how many clients received X", "events show " + id, []string{"1 on node-0", "1 on node-1"}},
		{"which key published X", "events show " + id, []string{"publisher key ci"}},
		{"what is waiting and until when", "deliveries list --all-sinks --state waiting,retrying", []string{"NEXT", id + "  retry", "m  "}},
		{"what failed in the last hour", "deliveries list --all-sinks --state dead,retrying --since 1h", []string{id + "  dead ", id + "  retry"}},
		{"which events of a container happened today", "events search --container c-1 --since 1d", []string{id, "container.error", "key ci"}},
		{"what a key can see", "streams explain --key reader --hub hub-1", []string{"The client sees 1 of the newest 1 event", "yes      " + id}},
	} {
		testkit.Eventually(t, q.question, func() error {
			answer := ask(strings.Fields(q.command)...)
			for _, want := range q.want {
				if !strings.Contains(answer, want) {
					return fmt.Errorf("the answer does not contain %q", want)
				}
			}
			return nil
		})
	}
	// Each node names its own clients.
	for i, want := range []string{"(reader)", "(ci)"} {
		out, _, _ := call(t, nil, "", "events", "show", id, "--admin", nodes[i].Admin)
		if !strings.Contains(out, want) {
			t.Errorf("node %d does not name its client %s:\n%s", i+1, want, out)
		}
	}

	command(one, "sinks", "pause", "good")
	command(two, "sinks", "resume", "good")
	isFixed.Store(true)
	command(two, "deadletters", "replay", "dead", "--all")
	command(one, "sinks", "replay", "good", "--id", id)
	for _, q := range []struct {
		question, command string
		want              []string
	}{
		{"what changed in the state of a sink, and by whom", "sinks show good", []string{"active     admin user", "paused     admin user"}},
		{"what was replayed, by whom, how many", "audit", []string{
			"deadletters.replay", "1 replayed", "sinks.replay", "admin user", "good", "dead",
		}},
		{"was it delivered after all", "events show " + id, []string{"dead  delivered"}},
	} {
		testkit.Eventually(t, q.question, func() error {
			answer := ask(strings.Fields(q.command)...)
			for _, want := range q.want {
				if !strings.Contains(answer, want) {
					return fmt.Errorf("the answer does not contain %q", want)
				}
			}
			return nil
		})
	}
	// The help leads to these commands.
	for _, command := range []string{"", "events", "deliveries", "sinks", "audit", "streams", "keys"} {
		out, _, code := call(t, nil, "", append(strings.Fields(command), "--help")...)
		if code != 0 {
			t.Errorf("%q --help exited with %d", command, code)
		}
		want := map[string][]string{
			"":           {"events ", "deliveries ", "sinks ", "audit ", "streams ", "keys "},
			"events":     {"search ", "show ", "tail "},
			"deliveries": {"list ", "retry ", "drop "},
			"sinks":      {"show ", "replay "},
			"streams":    {"explain "},
			"keys":       {"check "},
			"audit":      {"--action"},
		}[command]
		for _, text := range want {
			if !strings.Contains(out, text) {
				t.Errorf("the help of %q does not contain %q:\n%s", command, text, out)
			}
		}
	}
}
