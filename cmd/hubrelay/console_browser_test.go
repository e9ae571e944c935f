package main_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hubrelay/hubrelay/internal/adminapi"
	"github.com/hubrelay/hubrelay/internal/redistest"
	"github.com/hubrelay/hubrelay/internal/testkit"
)

const (
	// consoleDir contains the sources of the console with its tests.
	consoleDir = "../../relay/internal/console/web"
	// hostileText tries to run a script wherever it is shown as markup.
	hostileText = `"><script>window.hacked=1</script><img src=x onerror="window.hacked=1">`

	viewerToken   = "viewer-token-0123456789"
	operatorToken = "operator-token-0123456789"
	adminToken    = "admin-token-0123456789"
)

const consoleTokens = `admin:
  listen: 127.0.0.1:0
  tokens:
    - {name: viewer, role: viewer, token: ` + viewerToken + `}
    - {name: operator, role: operator, token: ` + operatorToken + `}
    - {name: admin, role: admin, token: ` + adminToken + `}
`

// TestConsoleInBrowser runs the tests of the console in Chromium: on a relay without data, on one with data of all kinds, some
// of it hostile, and on one whose webhook is broken. `make test-console` runs it alone, because a browser needs the processors.
func TestConsoleInBrowser(t *testing.T) {
	if os.Getenv("HUBRELAY_TEST_CONSOLE") == "" {
		t.Skip("it needs Chromium and the npm packages of the console: make test-console")
	}
	empty := serve(t, daemonConfig{redis: fmt.Sprintf("url: %q", redistest.Start(t).URL()), sinks: consoleTokens})
	busy, site := newBusyRelay(t)
	failing, repair := newFailingRelay(t)
	long := newLongRelay(t)
	control := http.NewServeMux()
	control.HandleFunc("POST /repair", func(http.ResponseWriter, *http.Request) { repair() })
	// A job that runs stays in its step while the driver is stopped.
	control.HandleFunc("POST /drivers/stop", func(http.ResponseWriter, *http.Request) { site.signalDrivers(syscall.SIGSTOP) })
	control.HandleFunc("POST /drivers/continue", func(http.ResponseWriter, *http.Request) { site.signalDrivers(syscall.SIGCONT) })
	control.HandleFunc("POST /publish", func(w http.ResponseWriter, r *http.Request) {
		n, err := strconv.Atoi(r.URL.Query().Get("n"))
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		var lines strings.Builder
		for i := range n {
			fmt.Fprintf(&lines, `{"topic":"container.state.changed","object":{"id":"live-%d","state":"running"},"context":{"account_id":"acme"}}`+"\n", i)
		}
		reply, err := busy.Try(r.Context(), testkit.Request{
			Method: "POST", Key: opsKey, Hub: "hub-1", ContentType: "application/x-ndjson", Body: lines.String(),
		})
		if err != nil || reply.Status != http.StatusAccepted {
			http.Error(w, fmt.Sprint(err, reply.Body), http.StatusBadGateway)
		}
	})
	server := httptest.NewServer(control)
	t.Cleanup(server.Close)
	tests := testkit.Start(t, testkit.Command{
		Path: "npm", Args: []string{"run", "--silent", "e2e"}, Dir: consoleDir,
		Env: []string{
			"CONSOLE_EMPTY_URL=http://" + empty.Admin, "CONSOLE_BUSY_URL=http://" + busy.Admin,
			"CONSOLE_FAILING_URL=http://" + failing.Admin, "CONSOLE_LONG_URL=http://" + long.Admin,
			"CONSOLE_CONTROL_URL=" + server.URL,
			"CONSOLE_VIEWER_TOKEN=" + viewerToken, "CONSOLE_OPERATOR_TOKEN=" + operatorToken, "CONSOLE_ADMIN_TOKEN=" + adminToken,
			"CONSOLE_SCREENSHOTS=" + os.Getenv("CONSOLE_SCREENSHOTS"), "CONSOLE_IMAGES=" + os.Getenv("CONSOLE_IMAGES"),
			"CONSOLE_RESULTS=" + t.TempDir(), "CI=1",
		},
	})
	select {
	case <-tests.Done():
	case <-time.After(8 * time.Minute):
		t.Errorf("the tests in the browser have not ended after 8 minutes:\n%s", tests.Out.Tail(8000))
		return
	}
	if code := tests.Exit(t); code != 0 {
		t.Errorf("the tests in the browser exited with %d:\n%s", code, tests.Out.Tail(8000))
	}
}

// newBusyRelay starts a relay with data of all kinds.
func newBusyRelay(t *testing.T) (*daemon, *migrations) {
	t.Helper()
	m := newSite(t)
	store := redistest.Start(t)
	hooks := receive(t, func(w http.ResponseWriter, h hook) {
		switch h.path {
		case "/slow":
			w.WriteHeader(http.StatusServiceUnavailable)
		case "/dead":
			http.Error(w, "cannot process "+hostileText+"\u202etxt.exe\u2800"+strings.Repeat("x", 800), http.StatusUnprocessableEntity)
		default:
			w.WriteHeader(http.StatusNoContent)
		}
	})
	sink := func(name, more string) string {
		return scheduledWebhookSink(name, hooks.url+"/"+name, "1h", more)
	}
	c := daemonConfig{
		redis: fmt.Sprintf("url: %q", store.URL()),
		sinks: sink("good", "") + sink("slow", `, topics: ["container.error"]`) + sink("dead", `, topics: ["job.created"]`) +
			sink("paused", "") + "  written: {type: file, path: ./written.jsonl}\n" +
			"sources: {upstream: {type: hub, url: \"http://127.0.0.1:9\", key: " + opsKey + "}}\nhistory: {clients: true}\n" +
			m.section() + consoleTokens,
	}
	const gone = "  gone: {type: file, path: ./gone.jsonl}\n"
	write := func(extra string) string {
		with := c
		with.sinks = extra + with.sinks
		return writeFile(t, m.dir, "hubrelay.yaml", withMigrationCapability(with.renderYAML()))
	}
	file := write(gone)
	d := serveFile(t, file)
	command := func(args ...string) {
		t.Helper()
		env := []string{"HUBRELAY_ADMIN=http://" + d.Admin, "HUBRELAY_ADMIN_TOKEN=" + adminToken}
		if out, errOut, code := call(t, env, "", args...); code != 0 {
			t.Fatalf("%v exited with %d: %s%s", args, code, out, errOut)
		}
	}
	command("sinks", "pause", "paused")
	command("keys", "create", "ci", "--hub", "hub-1", "--account", "acme", "--capability", "notifications-publish")
	d.connect(t, readerKey, "hub-1", "")
	topics := []string{"container.state.changed", "container.error", "job.created", "billing.invoice.error"}
	states := []string{"running", "failed", hostileText, "\u202eevitcani\u202c", strings.Repeat("long ", 2000)}
	for _, hub := range []string{"hub-1", "hub-2"} {
		publishLines(t, d, hub, 100, func(i int) string {
			event, err := json.Marshal(map[string]any{
				"topic":   topics[i%len(topics)],
				"object":  map[string]string{"id": fmt.Sprintf("object-%d", i), "state": states[i%len(states)]},
				"context": map[string]any{"account_id": "acme", "containers": []string{"web"}},
			})
			if err != nil {
				t.Error(err)
			}
			return string(event)
		})
	}
	inbox := redisAt(t, store.Socket)
	for _, text := range []string{`{"topic":"no.such.topic","context":{"hub_id":"hub-1"}}`, hostileText, `{"topic":"job.created"}`} {
		if err := inbox.XAdd(t.Context(), &redis.XAddArgs{Stream: "hubrelay:inbox", Values: []string{"data", text}}).Err(); err != nil {
			t.Fatal(err)
		}
	}
	m.nodes, m.redis, m.store = []*daemon{d}, store, inbox
	m.over(m.migrate(0, "b"))
	write("") // removes gone, which has events in its file only
	testkit.Eventually(t, "the data of the console", func() error {
		r, err := d.adminGet(t, "/api/sinks")
		if err != nil {
			return err
		}
		var list struct{ Data []adminapi.Sink }
		if err := json.Unmarshal([]byte(r), &list); err != nil {
			return err
		}
		for _, s := range list.Data {
			ok := true
			switch s.Name {
			case "dead":
				ok = s.Dead > 0
			case "slow":
				ok = s.Retrying > 0
			case "paused":
				ok = s.Waiting > 0
			case "good":
				ok = s.Delivered >= 200
			case "gone":
				ok = !s.Configured
			}
			if !ok {
				return fmt.Errorf("the sink %s is not ready", s.Name)
			}
		}
		quarantine, err := d.adminGet(t, "/api/quarantine")
		if err == nil && strings.Count(quarantine, `"reason"`) < 3 {
			err = errors.New("entries are missing in the quarantine")
		}
		return err
	})
	return d, m
}

// newFailingRelay starts a relay with one broken webhook. repair lets its receiver accept everything.
func newFailingRelay(t *testing.T) (d *daemon, repair func()) {
	t.Helper()
	var isRepaired atomic.Bool
	hooks := receive(t, func(w http.ResponseWriter, h hook) {
		if h.path == "/billing" && !isRepaired.Load() {
			http.Error(w, "invoice service is down: database connection refused", http.StatusUnprocessableEntity)
			return
		}
		w.WriteHeader(http.StatusNoContent)
	})
	d = serve(t, daemonConfig{
		redis: fmt.Sprintf("url: %q", redistest.Start(t).URL()),
		sinks: webhookSink("billing", hooks.url+"/billing", "") + webhookSink("audit", hooks.url+"/audit", "") + consoleTokens,
	})
	const events = 12
	publishLines(t, d, "hub-1", events, func(i int) string {
		return fmt.Sprintf(`{"topic":"billing.invoice.error","object":{"id":"invoice-%d"},"context":{"account_id":"acme"}}`, i)
	})
	testkit.Eventually(t, "the dead letters", func() error {
		sink, err := d.adminGet(t, "/api/sinks/billing")
		if err == nil && !strings.Contains(sink, fmt.Sprintf(`"dead":%d`, events)) {
			err = fmt.Errorf("the sink does not have %d dead letters", events)
		}
		return err
	})
	return d, func() { isRepaired.Store(true) }
}

// newLongRelay starts a relay with long lists: CONSOLE_EVENTS events, or longEvents, that are all dead letters.
func newLongRelay(t *testing.T) *daemon {
	t.Helper()
	const longEvents = 3000
	events := longEvents
	if n, err := strconv.Atoi(os.Getenv("CONSOLE_EVENTS")); err == nil {
		events = n
	}
	hooks := receive(t, func(w http.ResponseWriter, _ hook) { http.Error(w, "not accepted", http.StatusUnprocessableEntity) })
	d := serve(t, daemonConfig{
		redis: fmt.Sprintf("url: %q", redistest.Start(t).URL()),
		sinks: webhookSink("dead", hooks.url+"/dead", "") + consoleTokens,
	})
	const batch = 500
	for first := 0; first < events; first += batch {
		publishLines(t, d, "hub-1", min(batch, events-first), func(i int) string {
			return fmt.Sprintf(`{"topic":"job.created","object":{"id":"object-%d"},"context":{"account_id":"acme"}}`, first+i)
		})
	}
	return d
}

// publishLines publishes n events with one request.
func publishLines(t *testing.T, d *daemon, hub string, n int, event func(i int) string) {
	t.Helper()
	var lines strings.Builder
	for i := range n {
		lines.WriteString(event(i) + "\n")
	}
	d.Publish(t, hub, "application/x-ndjson", lines.String(), nil)
}

// adminGet returns the body of a response of the admin API over TCP.
func (d *daemon) adminGet(t *testing.T, path string) (string, error) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+d.Admin+path, http.NoBody)
	if err != nil {
		return "", err
	}
	r.Header.Set("Authorization", "Bearer "+adminToken)
	b := newConsoleBrowser(t, "http://"+d.Admin)
	status, text := b.send(r)
	if status != http.StatusOK {
		return "", fmt.Errorf("got %d %s", status, text)
	}
	return text, nil
}
