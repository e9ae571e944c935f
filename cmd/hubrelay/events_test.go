package main_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hubrelay/hubrelay/internal/redistest"
	"github.com/hubrelay/hubrelay/internal/testkit"
)

// TestEventsSearch finds events by object, context, topic, time and publisher.
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
		"-o xml":                "table, json, jsonl or yaml",
		"--since 1h --until 2h": "until is not later",
		"--topic [":             "topic",
	} {
		out, errOut, code := call(t, nil, "", append([]string{"events", "search", "--admin", d.Admin}, strings.Fields(args)...)...)
		if code == 0 || !strings.Contains(errOut, want) {
			t.Errorf("%q: exited with %d, %s%s, want %q", args, code, out, errOut, want)
		}
	}
}

// shownEvent is the JSON of `events show`.
type shownEvent struct {
	ID        string
	Topic     string
	Publisher struct{ Kind, Name string }
	Payload   json.RawMessage
	Sinks     []struct {
		Sink, State, Reason string
		NextAttemptAt       *time.Time `json:"next_attempt_at"`
		Attempts            []struct {
			Number, Status       int
			Outcome, Error, Node string
		}
	}
	Streams []struct {
		Node    string
		Clients int
		Keys    []string
	}
}

// state returns the state and reason of the delivery to a sink, and the numbers of its attempts.
func (e *shownEvent) state(sink string) string {
	for _, s := range e.Sinks {
		if s.Sink == sink {
			text := strings.TrimSpace(s.State + " " + s.Reason)
			for _, a := range s.Attempts {
				text += fmt.Sprintf(" %d=%d", a.Number, a.Status)
			}
			return text
		}
	}
	return "missing"
}

// TestEventsShow explains on two nodes what happened to an event, for sinks in all states.
func TestEventsShow(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	hooks := receive(t, func(w http.ResponseWriter, h hook) {
		status, ok := map[string]int{"/bad": http.StatusServiceUnavailable, "/dead": http.StatusUnprocessableEntity}[h.path]
		if !ok {
			status = http.StatusOK
		}
		w.WriteHeader(status)
	})
	sink := func(name, path, more string) string {
		return fmt.Sprintf("  %s: {type: webhook, url: %q, secrets: [%q], allow_cidrs: [127.0.0.0/8], "+
			"retry: {schedule: [100ms, 1h]}, %s}\n", name, hooks.url+path, webhookSecret, more)
	}
	sinks := sink("good", "/good", `topics: ["*"]`) + sink("bad", "/bad", `topics: ["*"]`) + sink("dead", "/dead", `topics: ["*"]`) +
		sink("billing", "/", `topics: ["billing.*"]`) + sink("other", "/", `topics: ["*"], hubs: [hub-2]`) +
		sink("when", "/", `topics: ["*"], when: 'topic startsWith "container" and object.state == "failed"'`) +
		sink("batch", "/", `topics: ["*"], batch: {wait: 100ms}`) + sink("paused", "/", `topics: ["*"]`)
	config := daemonConfig{redis: fmt.Sprintf("url: %q", server.URL()), sinks: sinks}
	file := writeFile(t, tempDir(t), "hubrelay.yaml", config.renderYAML())
	otherFile := writeFile(t, tempDir(t), "hubrelay.yaml", config.renderYAML())
	one, two := serveFile(t, file), serveFile(t, otherFile)
	command := func(wantCode int, args ...string) string {
		t.Helper()
		out, errOut, code := call(t, nil, "", append(args, "--admin", one.Admin)...)
		if code != wantCode {
			t.Fatalf("%v exited with %d: %s%s", args, code, out, errOut)
		}
		return out + errOut
	}
	show := func(id string) (e shownEvent) {
		t.Helper()
		if err := json.Unmarshal([]byte(command(0, "events", "show", id, "-o", "json")), &e); err != nil {
			t.Fatal(err)
		}
		return e
	}
	command(0, "sinks", "pause", "paused")
	testkit.WaitFor(t, "the other node to pause the sink", func() bool { return strings.Contains(two.Err.String(), "sink paused") })
	for range 2 {
		one.connect(t, readerKey, "hub-1", "")
	}
	two.connect(t, readerKey, "hub-1", "")
	two.connect(t, readerKey, "hub-2", "")
	event := `{"topic":"container.created","object":{"id":"o"},"context":{"hub_id":"hub-1","account_id":"acme"}}`
	id := one.Publish(t, "hub-1", "application/json", event, nil)[0]
	var e shownEvent
	testkit.Eventually(t, "the history of the event", func() error {
		e = show(id)
		for name, want := range map[string]string{
			"good": "delivered 1=200", "bad": "retrying 1=503 2=503", "dead": "dead permanent 1=422", "billing": "not_matched topics",
			"other": "not_matched hubs", "when": `not_matched when: object.state == "failed"`, "batch": "delivered 1=200",
			"paused": "waiting paused",
		} {
			if got := e.state(name); got != want {
				return fmt.Errorf("%s: got %q, want %q", name, got, want)
			}
		}
		clients := 0
		for _, s := range e.Streams {
			clients += s.Clients
		}
		if len(e.Streams) != 2 || clients != 3 {
			return fmt.Errorf("got the clients %+v, want 3 on two nodes", e.Streams)
		}
		return nil
	})
	if e.ID != id || e.Topic != "container.created" || e.Publisher.Kind != "key" || e.Publisher.Name != "ops" ||
		!strings.Contains(string(e.Payload), `"object"`) || len(e.Sinks) != 8 {
		t.Errorf("got %+v", e)
	}
	out := command(0, "events", "show", id)
	for _, want := range []string{
		"publisher key ops", "good  delivered", "bad  retrying, next attempt in ", "dead  dead", `not matched: when: object.state == "failed"`,
		"paused  waiting: the sink is paused", "status 503", "payload", "1 on node-", "2 on node-",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("the output does not contain %q:\n%s", want, out)
		}
	}
	checkDeliveries(t, command, id)
	// A changed filter does not change what is said about an earlier event.
	config.sinks = strings.Replace(sinks, "billing.*", "container.*", 1) + sink("later", "/", `topics: ["*"]`)
	one.reconfigure(t, file, config, 1)
	two.reconfigure(t, otherFile, config, 1)
	testkit.Eventually(t, "an event to be matched with the changed filter", func() error {
		one.Publish(t, "hub-1", "application/json", event, nil)
		if command(0, "deliveries", "list", "billing", "--state", "delivered", "-o", "jsonl") == "" {
			return errors.New("billing has received nothing")
		}
		return nil
	})
	if e := show(id); e.state("billing") != "not_matched topics" || e.state("later") != "not_matched added_later" {
		t.Errorf("after a reload: got %+v", e.Sinks)
	}
	command(0, "sinks", "resume", "paused")
	command(0, "deadletters", "drop", "dead", id)
	testkit.Eventually(t, "the changed states", func() error {
		if e := show(id); e.state("paused") != "delivered 1=200" || e.state("dead") != "dropped dead_letter_dropped 1=422" {
			return fmt.Errorf("got %+v", e.Sinks)
		}
		return nil
	})
	testkit.Eventually(t, "the changes of the sink", func() error {
		out := command(0, "sinks", "show", "paused")
		paused, active := strings.Index(out, "paused     admin user"), strings.Index(out, "active     admin user")
		if active < 0 || paused < active || !strings.Contains(out, "last success") {
			return fmt.Errorf("got\n%s", out)
		}
		return nil
	})
	for bad, want := range map[string]string{
		"x": "24 hexadecimal digits", strings.Repeat("0", 24): "404.event", strings.Repeat("z", 24): "24 hexadecimal digits",
	} {
		if out := command(1, "events", "show", bad); !strings.Contains(out, want) {
			t.Errorf("%s: got %s", bad, out)
		}
	}
}

// checkDeliveries lists the deliveries of the event of TestEventsShow.
func checkDeliveries(t *testing.T, command func(wantCode int, args ...string) string, id string) {
	t.Helper()
	list := func(args string) (found []string) {
		t.Helper()
		out := command(0, append([]string{"deliveries", "list", "-o", "jsonl"}, strings.Fields(args)...)...)
		for line := range strings.Lines(out) {
			var d struct {
				EventID, Sink, Topic, State string
				Attempts, Status            int
			}
			line = strings.ReplaceAll(line, "event_id", "EventID")
			if err := json.Unmarshal([]byte(line), &d); err != nil {
				t.Fatal(err)
			}
			if d.EventID != id || d.Topic != "container.created" {
				t.Errorf("%s: got %s", args, line)
			}
			found = append(found, fmt.Sprintf("%s %s %d %d", d.Sink, d.State, d.Attempts, d.Status))
		}
		return found
	}
	for args, want := range map[string][]string{
		"bad":                           {"bad retrying 2 503"},
		"good":                          {"good delivered 1 200"},
		"dead --state dead":             {"dead dead 1 422"},
		"paused --state waiting":        {"paused waiting 0 0"},
		"batch --state delivered":       {"batch delivered 1 200"},
		"good --state retrying,waiting": nil,
		"good --topic job.*":            nil,
		"good --since 1h --limit 1":     {"good delivered 1 200"},
		"--all-sinks --state dead,retrying --since 1h": {"bad retrying 2 503", "dead dead 1 422"},
		"--all-sinks": {
			"bad retrying 2 503", "batch delivered 1 200", "dead dead 1 422", "good delivered 1 200", "paused waiting 0 0",
		},
	} {
		if got := list(args); !slices.Equal(got, want) {
			t.Errorf("deliveries list %s: got %q, want %q", args, got, want)
		}
	}
	if out := command(0, "deliveries", "list", "--all-sinks", "--state", "retrying"); !strings.Contains(out, "SINK") ||
		!strings.Contains(out, "status 503") {
		t.Errorf("got\n%s", out)
	}
	if out := command(0, "deliveries", "list", "billing"); out != "no deliveries match\n" {
		t.Errorf("got %q", out)
	}
	for args, want := range map[string]struct {
		code int
		text string
	}{
		"missing":                {1, "there is no sink"},
		"":                       {2, "either a sink or --all-sinks"},
		"good --all-sinks":       {2, "either a sink or --all-sinks"},
		"good --state delivred":  {1, "did you mean delivered?"},
		"good --since yesterday": {2, "--since"},
		"good --limit 0":         {2, "at least 1"},
	} {
		if out := command(want.code, append([]string{"deliveries", "list"}, strings.Fields(args)...)...); !strings.Contains(out, want.text) {
			t.Errorf("deliveries list %s: got %s, want %s", args, out, want.text)
		}
	}
}

// TestEventsShow_Backlog distinguishes an event that a full queue has dropped from waiting events.
func TestEventsShow_Backlog(t *testing.T) {
	t.Parallel()
	hooks := receive(t, func(w http.ResponseWriter, _ hook) { w.WriteHeader(http.StatusNoContent) })
	d := serve(t, daemonConfig{sinks: webhookSink("hook", hooks.url+"/", ", backlog: 5")})
	command := func(args ...string) string {
		t.Helper()
		out, errOut, code := call(t, nil, "", append(args, "--admin", d.Admin)...)
		if code != 0 {
			t.Fatalf("%v exited with %d: %s%s", args, code, out, errOut)
		}
		return out
	}
	delivered := d.Publish(t, "hub-1", "application/json", plain, nil)[0]
	state := func(id string) string {
		t.Helper()
		var e shownEvent
		if err := json.Unmarshal([]byte(command("events", "show", id, "-o", "json")), &e); err != nil {
			t.Fatal(err)
		}
		return e.state("hook")
	}
	expect := func(id, want string) {
		t.Helper()
		testkit.Eventually(t, want, func() error {
			if got := state(id); got != want {
				return fmt.Errorf("got %q", got)
			}
			return nil
		})
	}
	expect(delivered, "delivered 1=204")
	command("sinks", "pause", "hook")
	var ids []string
	for range 20 {
		ids = append(ids, d.Publish(t, "hub-1", "application/json", plain, nil)...)
	}
	expect(ids[14], "dropped backlog") // a node may have read the first ones
	expect(ids[19], "waiting paused")
	expect(delivered, "delivered 1=204")
}

// TestEventsTail follows events with their states.
func TestEventsTail(t *testing.T) {
	t.Parallel()
	hooks := receive(t, func(w http.ResponseWriter, h hook) {
		status := http.StatusNoContent
		if h.path == "/dead" {
			status = http.StatusUnprocessableEntity
		}
		w.WriteHeader(status)
	})
	d := serve(t, daemonConfig{redis: `url: "memory:"`, sinks: webhookSink("good", hooks.url+"/good", `, topics: ["container.*"]`) +
		webhookSink("dead", hooks.url+"/dead", `, topics: ["container.error"]`)})
	publish := func(topic string) string {
		t.Helper()
		return d.Publish(t, "hub-1", "application/json", fmt.Sprintf(`{"topic":%q}`, topic), nil)[0]
	}
	publish("container.created") // before the first line
	early := publish("container.created")
	tail := start(t, nil, "events", "tail", "--admin", d.Admin, "--topic", "container.*,job.created", "-n", "1")
	jsonTail := start(t, nil, "events", "tail", "--admin", d.Admin, "-n", "1", "-o", "jsonl")
	wait := func(p *testkit.Process, id string) string {
		t.Helper()
		return p.Line(t, "the line of "+id, func(line string) bool { return strings.Contains(line, id) })
	}
	ids := []string{early} // in the order in which tail prints them
	// On a busy machine, an attempt can take longer than tail waits for it.
	expect := func(topic, want string) {
		t.Helper()
		testkit.Eventually(t, want, func() error {
			id := publish(topic)
			ids = append(ids, id)
			if line := wait(tail, id); !strings.HasSuffix(line, want) {
				return fmt.Errorf("got %q", line)
			}
			return nil
		})
	}
	wait(tail, early)
	wait(jsonTail, early)
	expect("container.created", "good delivered 204")
	expect("container.error", "dead dead 422, good delivered 204")
	hidden := publish("dns.zone.state.changed")
	expect("job.created", "no sink selects it")
	wait(jsonTail, ids[len(ids)-1])
	var printed []string
	for line := range strings.Lines(tail.Out.String()) {
		printed = append(printed, strings.Fields(line)[1])
	}
	if !slices.Equal(printed, ids) {
		t.Errorf("printed %q, want %q", printed, ids)
	}
	printed = nil
	for line := range strings.Lines(jsonTail.Out.String()) {
		var e shownEvent
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatal(err)
		}
		if e.ID != hidden {
			printed = append(printed, e.ID)
		}
	}
	if !slices.Equal(printed, ids) || !strings.Contains(jsonTail.Out.String(), hidden) {
		t.Errorf("printed %q as JSON, want %q and %s", printed, ids, hidden)
	}
	for _, p := range []*testkit.Process{tail, jsonTail} {
		p.Signal(os.Interrupt)
		if code := p.Exit(t); code != 0 {
			t.Errorf("exited with %d: %s", code, p.Err.String())
		}
	}
	for args, want := range map[string]string{"-o json": "jsonl", "-n -1": "--lines"} {
		if _, errOut, code := call(t, nil, "", append([]string{"events", "tail", "--admin", d.Admin}, strings.Fields(args)...)...); code != 2 ||
			!strings.Contains(errOut, want) {
			t.Errorf("%s: exited with %d, %s", args, code, errOut)
		}
	}
}
