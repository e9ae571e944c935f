package main_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"
)

// fakeAdmin implements the documented admin API and records requests.
type fakeAdmin struct {
	*httptest.Server
	mu      sync.Mutex
	asked   []string
	letters []string // ids of dead letters of billing
	answers map[string]string
}

func startFakeAdmin(t *testing.T, answers map[string]string) *fakeAdmin {
	t.Helper()
	f := &fakeAdmin{answers: answers}
	f.Server = httptest.NewServer(f)
	t.Cleanup(f.Close)
	return f
}

func (f *fakeAdmin) env() []string { return []string{"HUBRELAY_ADMIN=" + f.URL} }

func (f *fakeAdmin) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var body map[string]any
	_ = json.NewDecoder(r.Body).Decode(&body)
	f.mu.Lock()
	defer f.mu.Unlock()
	key := r.Method + " " + r.URL.EscapedPath()
	line := key
	if len(r.URL.RawQuery) > 0 {
		line += "?" + r.URL.RawQuery
	}
	if ids, ok := body["ids"].([]any); ok {
		line += fmt.Sprintf(" %d ids", len(ids))
	}
	rest := maps.Clone(body)
	delete(rest, "ids")
	if len(rest) > 0 {
		line += fmt.Sprint(" ", rest)
	}
	f.asked = append(f.asked, line)
	switch key {
	case "GET /api/sinks/billing/deadletters":
		f.page(w, r)
		return
	case "POST /api/sinks/billing/deadletters/replay", "POST /api/sinks/billing/deadletters/drop":
		f.change(w, body)
		return
	}
	answer, ok := f.answers[key]
	if !ok {
		w.WriteHeader(http.StatusNotFound)
		answer = `{"error":{"status":404,"code":"404.sink","title":"There is no such sink",` +
			`"detail":"there is none"},"data":null}`
	}
	_, _ = fmt.Fprint(w, answer)
}

// page returns three dead letters at a time.
func (f *fakeAdmin) page(w http.ResponseWriter, r *http.Request) {
	after := slices.Index(f.letters, r.URL.Query().Get("after")) + 1
	end := min(after+3, len(f.letters))
	next, data := "", []map[string]any{}
	for _, id := range f.letters[after:end] {
		data = append(data, map[string]any{
			"id": id, "topic": "container.error", "hub_id": "hub-1", "account_id": "acme", "time": time.Now().Add(
				-3 * time.Hour),
			"reason": "permanent", "error": "post to example.com: status 400\x1b[2J" + strings.Repeat(" and on", 20), "attempts": 2,
		})
		next = id
	}
	if end == len(f.letters) {
		next = ""
	}
	_ = json.NewEncoder(w).Encode(map[string]any{"data": data, "next": next})
}

func (f *fakeAdmin) change(w http.ResponseWriter, body map[string]any) {
	ids, _ := body["ids"].([]any)
	if slices.Contains(ids, any("full")) {
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = fmt.Fprint(w, `{"error":{"status":503,"code":"503.storage-full","title":"Redis is full","detail":"","extra":{"replayed":1}},"data":null}`)
		return
	}
	changed := 0
	f.letters = slices.DeleteFunc(f.letters, func(id string) bool {
		found := slices.Contains(ids, any(id))
		if found {
			changed++
		}
		return found
	})
	unchanged := []map[string]string{}
	for _, id := range ids[min(changed, len(ids)):] { // the tests name unknown IDs last
		unchanged = append(unchanged, map[string]string{"id": fmt.Sprint(id), "reason": "missing"})
	}
	_ = json.NewEncoder(w).Encode(map[string]any{"data": map[string]any{"changed": changed, "unchanged": unchanged}})
}

func (f *fakeAdmin) requests() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	list := f.asked
	f.asked = nil
	return list
}

func (f *fakeAdmin) hold(n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.letters = nil
	for i := range n {
		f.letters = append(f.letters, fmt.Sprintf("%024d", i))
	}
}

// adminAnswers are the responses of the fake API for two sinks.
func adminAnswers() map[string]string {
	ago := func(d time.Duration) string { return time.Now().Add(-d).UTC().Format(time.RFC3339) }
	billing := `{"name":"billing","type":"webhook","configured":true,"state":"paused","reason":"paused by an operator",` +
		`"state_changed_at":"2026-11-20T08:00:00Z",` +
		`"topics":["billing.*","container.*","environment.*","infrastructure.*"],"waiting":1234567,"retrying":12,"dead":7,` +
		`"oldest_at":"` + ago(2*time.Hour) + `","in_flight":3,"delivered":98765,"retries":5,` +
		`"failed_attempts":{"timeout":2,"status_5xx":40},"last_success_at":"` + ago(5*time.Minute) + `"}`
	active := strings.Replace(billing, "paused", "active", 1)
	return map[string]string{
		"GET /api/sinks": `{"data":[` + billing +
			`,{"name":"left","type":"","configured":false,"state":"removed","topics":[],"dead":1}` +
			`,{"name":"far","type":"webhook","configured":true,"state":"down","reason":"it failed",` +
			`"next_attempt_at":"2026-11-20T08:00:07Z"}` +
			`,{"name":"busy","type":"webhook","configured":true,"state":"throttled","reason":"it is throttled",` +
			`"next_attempt_at":"2026-11-20T08:00:09Z","last_error":"exhausted",` +
			`"last_error_at":"` + ago(3*time.Hour) + `"}]}`,
		"GET /api/sinks/billing":         `{"data":` + billing + `}`,
		"POST /api/sinks/billing/pause":  `{"data":` + billing + `}`,
		"POST /api/sinks/billing/resume": `{"data":` + active + `}`,
		"POST /api/sinks/billing/retry":  `{"data":{"started":12,"sink":` + active + `}}`,
		"POST /api/sinks/far/retry": `{"data":{"sink":{"name":"far","state":"down","retrying":7,"waiting":3,` +
			`"waiting_in_digests":2}}}`,
		"POST /api/sinks/busy/retry": `{"data":{"sink":{"name":"busy","state":"throttled","reason":"it is throttled",` +
			`"next_attempt_at":"2026-11-20T08:00:09Z","retrying":1}}}`,
		"POST /api/sinks/elsewhere/retry": `{"data":{"started":2,"on_other_node":true,"sink":{"name":"elsewhere","state":"active",` +
			`"retrying":2}}}`,
		"POST /api/sinks/billing/replay": `{"data":{"replayed":42,"skipped":3,"complete":false}}`,
		"POST /api/sinks/billing/test":   `{"data":{"outcome":"delivered","status":204,"duration_ms":31}}`,
		"POST /api/sinks/broken/test": `{"data":{"outcome":"retry","status":500,"duration_ms":12,` +
			`"error":"post to example.com: status 500",` +
			`"response":"\n  out of \u001b[2Jorder\nat line 1"}}`,
		"POST /api/sinks/moved/test": `{"data":{"outcome":"retry","status":302,"duration_ms":1,` +
			`"error":"post to example.com: status 302"}}`,
		"POST /api/sinks/left/forget":     `{"data":{"forgotten":"left"}}`,
		"POST /api/sinks/a%2Fb%3Fc/pause": `{"data":` + strings.Replace(billing, "billing", "a/b?c", 1) + `}`,
		"POST /api/sinks/strange/pause":   `<html>`,
		"GET /api/sinks/billing/deadletters/one": `{"data":{"id":"one","topic":"container.error","hub_id":"hub-1",` +
			`"account_id":"acme",` +
			`"time":"2026-11-20T08:00:00Z","reason":"status 400","attempts":[{"time":"2026-11-20T07:59:59Z",` +
			`"outcome":"permanent","status":400,` +
			`"response":"no such\nhook \u001b[2J","error":"post to example.com: status 400","duration_ms":31}],` +
			`"events":[{"topic":"container.error","object":{"id":"x"}}]}}`,
		"GET /api/sinks/billing/deadletters/many": `{"data":{"id":"many","topic":"container.error","hub_id":"hub-1",` +
			`"account_id":"acme",` +
			`"time":"2026-11-20T08:00:00Z","reason":"status 400","attempts":[],"digest":{"count":57,` +
			`"first":"2026-11-20T07:58:03Z",` +
			`"last":"2026-11-20T07:59:00Z","by":{"hub":"hub-1","cluster":"eu\u001b[2J"},` +
			`"topics":{"container.created":2,"container.error":43,"acme.x":12}},` +
			`"events":[{"object":{"id":"x"}},{"object":{"id":"y"}}]}}`,
	}
}

func TestSteeringCommands(t *testing.T) {
	t.Parallel()
	admin := startFakeAdmin(t, adminAnswers())
	for _, tc := range []struct {
		args  string
		code  int
		parts []string // of standard output, or of standard error for a failure
		asked string   // the last request
	}{
		{"sinks list", 0, []string{
			"RETRYING", "billing", "paused", "1.2M", "12", "2h", "5m", "98765", "42", "by an operator", "removed",
			"sinks forget",
			" down ", "it failed, next attempt when a delivery is due; 'hubrelay sinks retry' starts an attempt now", " throttled ",
			"it is throttled, until 2026-11-20T08:00:09Z; 'hubrelay sinks resume' ends the pause\nbusy: the last attempt failed 3h ago: exhausted\n",
		}, "GET /api/sinks?limit=500"},
		{"sinks list --json", 0, []string{`"waiting":1234567`}, "GET /api/sinks?limit=500"},
		{"deliveries list billing --limit x", 2, []string{`--limit "x" is not a whole number`}, ""},
		{"keys rotate ci --overlap x", 2, []string{`--overlap "x" is not a duration such as 90s`}, ""},
		{"sinks replay billing --since x", 2, []string{`--since "x" is neither an age such as 2h nor a time`}, ""},
		{"sinks replay billing --since 2h --until x", 2, []string{`--until "x" is neither an age`}, ""},
		{"sinks pause billing", 0, []string{"billing is paused", "1234567"}, "POST /api/sinks/billing/pause"},
		{"sinks pause a/b?c", 0, []string{"a/b?c is paused"}, "POST /api/sinks/a%2Fb%3Fc/pause"},
		{"sinks resume billing", 0, []string{"billing is active"}, "POST /api/sinks/billing/resume"},
		{"sinks resume billing --json", 0, []string{`{"name":"billing"`}, "POST /api/sinks/billing/resume"},
		{"sinks resume biling", 1, []string{"404.sink", "sinks list"}, "POST /api/sinks/biling/resume"},
		{"sinks pause strange", 1, []string{admin.URL, "--admin"}, "POST /api/sinks/strange/pause"},
		{"sinks test billing", 0, []string{"delivered with status 204 after 31.0 ms"}, "POST /api/sinks/billing/test"},
		{"sinks test broken", 1, []string{"failed, outcome retry (a delivery would be retried), with status 500 after 12.0 ms: ", "out of ", "order"}, "POST /api/sinks/broken/test"},
		{"sinks test moved", 1, []string{"302", "redirects are never followed"}, "POST /api/sinks/moved/test"},
		{
			"sinks replay billing --after 1732153000123-0", 0,
			[]string{"42 events again", "skipped, because they still wait or are retried: 3", "may lack events", "redis.retention"},
			"POST /api/sinks/billing/replay map[after:1732153000123-0]",
		},
		{
			"sinks replay billing --id a,b --until 2026-11-21T04:00:00Z --topic job.*,!job.created --hub h --dry-run", 0,
			[]string{"would receive 42 events"},
			"POST /api/sinks/billing/replay map[dry_run:true event_ids:[a b] hub_id:h topics:[job.* !job.created] " +
				"until:2026-11-21T04:00:00Z]",
		},
		{"sinks replay billing", 2, []string{"--after"}, ""},
		{
			"sinks retry billing", 0,
			[]string{"retries 1234579 deliveries now; 1234567 of them not attempted yet\n"},
			"POST /api/sinks/billing/retry",
		},
		{
			"sinks retry far", 0,
			[]string{"far was down and attempts one of 8 deliveries now; if it succeeds, the others follow", "; 2 more are collected for a digest\n"},
			"POST /api/sinks/far/retry",
		},
		{
			"sinks retry busy", 0,
			[]string{"busy retries 1 delivery at 2026-11-20T08:00:09Z: it is throttled\n"},
			"POST /api/sinks/busy/retry",
		},
		{
			"sinks retry elsewhere", 0,
			[]string{"makes 2 deliveries due; another node attempts them in order", "'hubrelay sinks resume elsewhere'"},
			"POST /api/sinks/elsewhere/retry",
		},
		{
			"sinks forget left", 0,
			[]string{"was deleted", "kept"},
			"POST /api/sinks/left/forget",
		},
		{
			"sinks forget left --dead-letters", 0,
			[]string{"was deleted with its dead letters"},
			"POST /api/sinks/left/forget map[dead_letters:true]",
		},
		{"sinks pause", 2, []string{"--help"}, ""},
		{"sinks puase billing", 2, []string{"pause"}, ""},
		{"sinks list --admin 127.0.0.1", 2, []string{"https://127.0.0.1:9091"}, ""},
		{"sinks list --admin 127.0.0.1:1", 1, []string{"no relay responds at http://127.0.0.1:1"}, ""},
		{"sinks list --admin " + strings.TrimPrefix(admin.URL, "http://"), 0, []string{"billing"}, "GET /api/sinks?limit=500"},
		{"sinks list --admin http://127.0.0.1:1", 1, []string{"127.0.0.1:1", "--admin"}, ""},
		{"sinks list -c nothing.yaml --admin " + admin.URL, 0, []string{"billing"}, "GET /api/sinks?limit=500"},
		{"deadletters show billing one", 0, []string{
			"container.error", "hub-1", "attempts: 1", "permanent", "400", "31.0 ms", "| no such\n", "| hook",
			`"id": "x"`,
		}, "GET /api/sinks/billing/deadletters/one"},
		{"deadletters show billing many", 0, []string{
			"digest        of 57, the first 2026-11-20T07:58:03Z, the last 2026-11-20T07:59:00Z; lists 2\n",
			"by            cluster eu", ", hub hub-1\n",
			"topics        43 × container.error, 12 × acme.x, 2 × container.created\n", "event 1 of 2\n",
			"event 2 of 2\n", `"id": "y"`,
		}, "GET /api/sinks/billing/deadletters/many"},
		{"deadletters show billing two", 1, []string{"404."}, "GET /api/sinks/billing/deadletters/two"},
		{"deadletters list", 2, []string{"--help"}, ""},
		{"deadletters list billing --since soon", 2, []string{"2h"}, ""},
		{"deadletters drop billing", 2, []string{"--all"}, ""},
		{"deadletters drop billing one --all", 2, []string{"not both"}, ""},
		{"deadletters drop billing one --hub hub-1", 2, []string{"--all"}, ""},
		{"deadletters drop billing --all", 2, []string{"--yes"}, ""},
		{"deadletters replay other --all", 1, []string{"404.sink"}, "GET /api/sinks/other"},
	} {
		out, errOut, code := call(t, admin.env(), "", strings.Fields(tc.args)...)
		text := out
		if tc.code != 0 {
			text = errOut
			if strings.Count(strings.TrimSpace(errOut), "\n") != 0 {
				t.Errorf("hubrelay %s printed more than a line of errors:\n%s", tc.args, errOut)
			}
		}
		asked := ""
		if list := admin.requests(); len(list) > 0 {
			asked = list[len(list)-1]
		}
		if err := errors.Join(hasAll(text, tc.parts...)...); code != tc.code || err != nil || asked != tc.asked ||
			strings.Contains(out, "\x1b") {
			t.Errorf("hubrelay %s ended with %d after asking %q, want %d and %q, %v:\n%s%s", tc.args, code, asked,
				tc.code, tc.asked, err, out, errOut)
		}
		wantNarrow(t, tc.args, out)
	}
}

// wantNarrow checks that tables are narrow, except tables that are complete without a terminal.
func wantNarrow(t *testing.T, args, out string) {
	t.Helper()
	if strings.Contains(args, "--json") || !strings.Contains(args, " list") || strings.Contains(args, "deadletters") {
		return
	}
	for line := range strings.Lines(out) {
		if strings.Contains(line, " ago: ") {
			continue
		}
		if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > 100 {
			t.Errorf("hubrelay %s prints %d columns: %s", args, n, line)
		}
	}
}

func TestManyDeadLetters(t *testing.T) {
	t.Parallel()
	admin := startFakeAdmin(t, adminAnswers())
	admin.hold(7)
	out, errOut, code := call(t, admin.env(), "", "deadletters", "list", "billing", "--topic", "*.error", "--hub",
		"hub-1", "--since", "2026-11-20T08:00:00Z")
	asked := admin.requests()
	if code != 0 || strings.Count(out, "container.error") != 7 || strings.Contains(out, "\x1b") || len(asked) != 3 ||
		asked[0] != "GET /api/sinks/billing/deadletters?hub_id=hub-1&limit=500&"+
			"since=2026-11-20T08%3A00%3A00Z&topics=%2A.error" {
		t.Errorf("list ended with %d after %q:\n%s%s", code, asked, out, errOut)
	}
	if whole := " status 400\uFFFD[2J" + strings.Repeat(" and on", 20) + "\n"; strings.Count(out, whole) != 7 {
		t.Errorf("list cut the reasons, although there is no terminal:\n%s", out)
	}
	out, _, _ = call(t, admin.env(), "", "deadletters", "list", "billing", "--json")
	if strings.Count(out, "\n") != 7 || !strings.HasPrefix(out, `{"id":"0000`) {
		t.Errorf("list --json printed\n%s", out)
	}

	out, errOut, code = call(t, admin.env(), "", "deadletters", "drop", "billing", fmt.Sprintf("%024d", 3), "nothing")
	if code != 1 || !strings.Contains(out, "dropped 1 ") || !strings.Contains(errOut, "1 of 2") {
		t.Errorf("drop of one ended with %d: %s%s", code, out, errOut)
	}
	admin.hold(1201)
	admin.requests()
	out, errOut, code = call(t, admin.env(), "", "deadletters", "replay", "billing", "--all", "--json")
	asked = admin.requests()
	if want := "POST /api/sinks/billing/deadletters/replay 201 ids"; code != 0 || asked[len(asked)-1] != want ||
		out != `{"changed":1201,"unchanged":[]}`+"\n" {
		t.Errorf("replay --all ended with %d after %q, want %q: %s%s", code, asked[len(asked)-1], want, out, errOut)
	}
	admin.hold(2)
	out, errOut, code = call(t, admin.env(), "", "deadletters", "drop", "billing", "--all", "--yes")
	if code != 0 || out != "dropped 2 dead letters of billing\n" {
		t.Errorf("drop --all ended with %d: %s%s", code, out, errOut)
	}
	out, _, code = call(t, admin.env(), "", "deadletters", "list", "billing")
	if code != 0 || out != "no dead letters\n" {
		t.Errorf("list of none ended with %d: %s", code, out)
	}
	out, _, code = call(t, admin.env(), "", "deadletters", "list", "billing", "--topic", "nosuch")
	if code != 0 || out != "no dead letters match\n" {
		t.Errorf("list of none that match ended with %d: %s", code, out)
	}
	out, errOut, code = call(t, admin.env(), "", "deadletters", "replay", "billing", "-o", "json", "one", "full")
	if code != 1 || out != `{"changed":1,"unchanged":[]}`+"\n" || !strings.Contains(errOut, "1 of 2 were replayed before that") {
		t.Errorf("replay with an error ended with %d: %s%s", code, out, errOut)
	}
	admin.hold(1)
	out, _, code = call(t, admin.env(), "", "deadletters", "replay", "billing", "--all")
	if code != 0 || out != "replayed 1 dead letter of billing\n" {
		t.Errorf("replay of one ended with %d: %s", code, out)
	}
}

// Flags have priority over the environment.
func TestAdminFlags_FindDaemon(t *testing.T) {
	t.Parallel()
	named := func(name string) *fakeAdmin {
		return startFakeAdmin(t, map[string]string{"GET /api/sinks": `{"data":[{"name":"` + name +
			`","state":"active"}]}`})
	}
	env, file, flag := named("from-env"), named("from-file"), named("from-flag")
	config := writeFile(t, tempDir(t), "hubrelay.yaml",
		strings.Replace(daemonConfig{redis: `url: "memory:"`}.renderYAML(),
			"health:",
			"admin: {tokens: [{name: ci, role: admin, token: 0123456789abcdef}], listen: \""+
				strings.TrimPrefix(file.URL, "http://")+"\"}\nhealth:", 1))
	for _, tc := range []struct {
		env  []string
		args []string
		want string
	}{
		{env.env(), nil, "from-env"},
		{env.env(), []string{"-c", config}, "from-file"},
		{
			[]string{"HUBRELAY_ADMIN=nonsense", "HUBRELAY_ADMIN_TOKEN=0123456789abcdef"},
			[]string{"-c", config},
			"from-file",
		},
		{env.env(), []string{"-c", config, "--admin", flag.URL}, "from-flag"},
	} {
		out, errOut, code := call(t, tc.env, "", append([]string{"sinks", "list"}, tc.args...)...)
		if code != 0 || !strings.Contains(out, tc.want) {
			t.Errorf("sinks list %v ended with %d, want %s: %s%s", tc.args, code, tc.want, out, errOut)
		}
	}
}

func TestHelp_FitsTerminal(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"sinks", "list"}, {"sinks"}, {"sinks", "replay"}, {"deadletters"}, {"console"}, {"status"}} {
		out, _, _ := call(t, nil, "", append(args, "--help")...)
		for line := range strings.Lines(out) {
			if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > 125 &&
				!strings.HasPrefix(line, "  -") && !strings.HasPrefix(line, "      --") {
				t.Errorf("hubrelay %v --help has a line of %d columns: %s", args, n, line)
			}
		}
		if args[len(args)-1] == "list" && (strings.Contains(out, "RETRYING have failed") ||
			!strings.Contains(out, "were replayed")) {
			t.Errorf("the help of sinks list says\n%s", out)
		}
	}
}

func TestExplainCommand(t *testing.T) {
	t.Parallel()
	dir := tempDir(t)
	file := writeFile(t, dir, "hubrelay.yaml", daemonConfig{
		redis: `url: "memory:"`,
		sinks: webhookSink("billing", "http://127.0.0.1:9/hook", `, topics: ["billing.*"]`) +
			webhookSink("errors", "http://user:s3cretpass@127.0.0.1:9/s3cretpath?sig=s3cretsig",
				`, topics: ["*.error"], clusters: [production]`) +
			webhookSink("other", "http://127.0.0.1:9/hook", `, hubs: [hub-2]`),
	}.renderYAML())
	const event = `{"topic":"container.error","context":{"clusters":["production"]}}`
	base := []string{"sinks", "explain", "-c", file}
	out, errOut, code := call(t, nil, event, append(base, "--event", "-", "--hub", "hub-1")...)
	err := errors.Join(hasAll(out, "container.error", "hub-1", "billing (webhook) does not match: ", "billing.*",
		`errors (webhook) matches: `, `*.error`, "POST http://127.0.0.1:9/…\n", "webhook-signature: v1,",
		"Authorization: (hidden)",
		`"hub_id":"hub-1"`, "other (webhook) does not match: ", "hub")...)
	if code != 0 || err != nil || strings.Contains(out, "s3cret") ||
		strings.Contains(out, strings.TrimPrefix(webhookSecret, "whsec_")) {
		t.Errorf("explain ended with %d, %v:\n%s%s", code, err, out, errOut)
	}
	out, errOut, code = call(t, nil, event, append(base, "--event", "-", "--hub", "hub-2", "--json")...)
	matched := map[string]bool{}
	for line := range strings.Lines(out) {
		var e struct {
			Sink    string
			Matched bool
			Request *struct {
				Headers map[string]string
				Payload string
			}
		}
		if err := json.Unmarshal([]byte(line), &e); err != nil || e.Matched != (e.Request != nil) {
			t.Errorf("%q: %v", line, err)
		}
		matched[e.Sink] = e.Matched
		if e.Request != nil && (e.Request.Headers["webhook-id"] == "" ||
			!strings.HasPrefix(e.Request.Payload, `{"topic":`)) {
			t.Errorf("the request of %s is %v", e.Sink, e.Request)
		}
	}
	if code != 0 || fmt.Sprint(matched) != "map[billing:false errors:true other:true]" {
		t.Errorf("explain --json ended with %d and %v: %s", code, matched, errOut)
	}
	for _, tc := range []struct {
		event string
		code  int
		args  []string
		part  string
	}{
		{event, 1, append(base, "--event", "-"), "--hub"},
		{
			`{"topic":"container.error"}`, 1, append(base, "--event", "-"),
			"no context (422.missing-argument at /context); add it to the event, or use --hub",
		},
		{
			`{"topic":"container.error","context":{"hub_id":5}}`, 1, append(base, "--event", "-"),
			"hub_id must be a string, not a number (422.invalid-argument at /context/hub_id)\n",
		},
		{`{"topic":"contaner.error"}`, 1, append(base, "--event", "-", "--hub", "h"), "container.error"},
		{"", 1, append(base, "--event", dir+"/nothing.json"), "--event: open "},
		{"", 2, base, "--event"},
		{"", 2, []string{"sinks", "explain", "--event", "-"}, "-c FILE"},
	} {
		out, errOut, code := call(t, nil, tc.event, tc.args...)
		if code != tc.code || out != "" || !strings.Contains(errOut, tc.part) || strings.Count(errOut, "\n") != 1 {
			t.Errorf("%v ended with %d: %s%s", tc.args, code, out, errOut)
		}
	}
}
