package main_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/internal/redistest"
	"github.com/hubrelay/hubrelay/internal/testkit"
)

// team returns the YAML of a sink with a Slack app and more settings.
func team(api, more string) string {
	return fmt.Sprintf("  team: {type: slack, api_url: %q, topics: [\"container.*\"], allow_cidrs: [127.0.0.0/8], "+
		"retry: {schedule: [200ms, 500ms, 1s, 5s, 5s, 5s]}, %s}\n", api+"/api", more)
}

// round returns a notification of one container.
func round(n int) string {
	return fmt.Sprintf(`{"topic":"container.error","object":{"id":"web-1","error":"round %d"},`+
		`"context":{"account_id":"acme","containers":["c1"]}}`, n)
}

func (a *api) shows(want ...string) func() error {
	return func() error {
		if got := a.shown(); !slices.Equal(got, want) {
			return fmt.Errorf("shown %q, want %q", got, want)
		}
		return nil
	}
}

// TestSlackThreadOverReloads changes a sink that has a thread. The thread continues with another rate and another
// token. Another channel has another thread.
func TestSlackThreadOverReloads(t *testing.T) {
	t.Parallel()
	slack := &api{}
	far := httptest.NewServer(slack)
	t.Cleanup(far.Close)
	dir := tempDir(t)
	token := writeFile(t, dir, "token", "xoxb-s3cret-token\n")
	s := daemonConfig{redis: `url: "memory:"`}
	with := func(more string) daemonConfig {
		s.sinks = team(far.URL, fmt.Sprintf("token_file: %q, %s", token, more))
		return s
	}
	file := writeFile(t, dir, "hubrelay.yaml", with("channel: C0GENERAL, rate: 1000/s, burst: 100").renderYAML())
	d := serveFile(t, file)
	want := []string{"C0GENERAL: round 0"}
	say := func(n int, where string) {
		t.Helper()
		if n > 0 {
			want = append(want, fmt.Sprintf("%s: round %d", where, n))
		}
		d.Publish(t, "hub-1", "application/json", round(n), nil)
		testkit.Eventually(t, "the messages", slack.shows(want...))
	}
	say(0, "")
	d.reconfigure(t, file, with("channel: C0GENERAL, rate: 500/s, burst: 50"), 1)
	say(1, "reply to 0")
	testkit.Eventually(t, "the first message to follow", func() error {
		slack.mu.Lock()
		defer slack.mu.Unlock()
		if slack.updates != 1 {
			return fmt.Errorf("%d updates", slack.updates)
		}
		return nil
	})

	slack.mu.Lock()
	slack.token = "xoxb-s3cret-newer-token" // no delivery in progress may use the revoked token
	slack.mu.Unlock()
	if err := os.Rename(writeFile(t, dir, "fresh-token", "xoxb-s3cret-newer-token\n"), token); err != nil {
		t.Fatal(err)
	}
	d.reconfigure(t, file, with("channel: C0GENERAL, rate: 600/s, burst: 50"),
		2) // opens the sink again, which reads the file
	say(2, "reply to 0")
	d.reconfigure(t, file, with("channel: C0OTHERS, rate: 500/s, burst: 50"), 3)
	say(3, "C0OTHERS")
	say(4, "reply to 3")
	d.reconfigure(t, file, with(
		`channel: C0OTHERS, channels: [{topics: ["*.error"], channel: "#errors"}], rate: 500/s, burst: 50`), 4)
	say(5, "#errors")
}

// TestSlackTokenRevoked has Slack reject the token, then report a missing scope. The sink is disabled with
// instructions, loses nothing, and continues when it is resumed.
func TestSlackTokenRevoked(t *testing.T) {
	t.Parallel()
	slack := &api{token: "xoxb-s3cret-newer-token"}
	far := httptest.NewServer(slack)
	t.Cleanup(far.Close)
	dir := tempDir(t)
	token := writeFile(t, dir, "token", "xoxb-s3cret-token\n")
	s := daemonConfig{redis: `url: "memory:"`, sinks: team(far.URL, fmt.Sprintf("token_file: %q, channel: C0GENERAL, "+
		"rate: 1000/s, burst: 100", token))}
	d := serveFile(t, writeFile(t, dir, "hubrelay.yaml", s.renderYAML()))
	disabled := func(words ...string) {
		t.Helper()
		testkit.Eventually(t, "the sink to be disabled", func() error {
			list, _, _ := call(t, nil, "", "sinks", "list", "--json", "--admin", d.Admin)
			for _, part := range append(words, `"disabled"`) {
				if !strings.Contains(list, part) {
					return fmt.Errorf("no %s in\n%s", part, list)
				}
			}
			return nil
		})
	}
	d.Publish(t, "hub-1", "application/json", round(0), nil)
	disabled("token_revoked", "set the bot token")

	slack.mu.Lock()
	slack.refuse = func(w http.ResponseWriter, _ *http.Request) bool {
		_, _ = w.Write([]byte(`{"ok":false,"error":"missing_scope","needed":"chat:write","provided":"users:read"}`))
		return true
	}
	slack.mu.Unlock()
	resume := func() {
		t.Helper()
		if out, errOut, code := call(t, nil, "", "sinks", "resume", "team", "--admin", d.Admin); code != 0 {
			t.Fatal(out, errOut)
		}
	}
	resume()
	disabled("missing_scope", "chat:write (it has users:read)")

	slack.mu.Lock()
	slack.refuse = nil
	slack.mu.Unlock()
	if err := os.Rename(writeFile(t, dir, "fresh-token", "xoxb-s3cret-newer-token\n"), token); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "the backlog with the new token", func() error {
		resume() // the file is checked periodically
		return slack.shows("C0GENERAL: round 0")()
	})
	if shown := d.Err.String() + d.Out.String(); strings.Contains(shown, "s3cret") {
		t.Errorf("the log shows a token:\n%s", shown)
	}
}

// TestSlackThreadKilled kills a node, and Redis, while Slack responds to a first message. Nothing is lost, and there
// is at most one more first message.
func TestSlackThreadKilled(t *testing.T) {
	t.Parallel()
	for name, mishap := range map[string]func(t *testing.T, d *daemon, server *redistest.Server){
		"the node": func(_ *testing.T, d *daemon, _ *redistest.Server) { d.Kill() },
		"Redis":    func(_ *testing.T, _ *daemon, server *redistest.Server) { server.Kill() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t)
			posted, release := make(chan struct{}), make(chan struct{})
			slack := &api{posted: func(n int) {
				if n == 1 {
					close(posted)
					<-release
				}
			}}
			far := httptest.NewServer(slack)
			t.Cleanup(far.Close)
			s := daemonConfig{
				redis: fmt.Sprintf("url: %q", server.URL()),
				sinks: team(far.URL, "token: xoxb-s3cret-token, channel: C0GENERAL, timeout: 3s, rate: 1000/s, "+
					"burst: 100"),
			}
			d := serve(t, s)
			d.Publish(t, "hub-1", "application/json", round(0), nil)
			<-posted
			mishap(t, d, server)
			close(release)
			switch name {
			case "the node":
				d = serve(t, s)
			case "Redis":
				testkit.Eventually(t, "a word about the thread",
					d.Err.Contains("state of a thread could not be stored"))
				server.Restart()
			}
			testkit.Eventually(t, "readyz to say yes", d.Ready(http.StatusOK))
			d.Publish(t, "hub-1", "application/json", round(1), nil)
			testkit.Eventually(t, "both rounds, the first twice at most", func() error {
				got := slack.shown()
				once := []string{"C0GENERAL: round 0", "reply to 0: round 1"}
				repeated := []string{"C0GENERAL: round 0", "C0GENERAL: round 0", "reply to 1: round 1"}
				another := []string{"C0GENERAL: round 0", "C0GENERAL: round 1"}
				late := []string{"C0GENERAL: round 0", "C0GENERAL: round 1", "reply to 1: round 0"}
				switch {
				case slices.Equal(got, once) && name != "the node":
				case slices.Equal(got, repeated), slices.Equal(got, another) &&
					name == "Redis", slices.Equal(got, late):
				default:
					return fmt.Errorf("shown %q", got)
				}
				return nil
			})
			t.Log(slack.shown())
		})
	}
}

// TestSlackThrottlingIsShared has three nodes and one response that asks for a pause. No node calls Slack during the
// pause. Everything is delivered after it.
func TestSlackThrottlingIsShared(t *testing.T) {
	t.Parallel()
	const rest = 12 * time.Second
	server := redistest.Start(t)
	store := redisAt(t, server.Socket)
	var began, seen time.Time // seen: the pause was in Redis
	var calls []time.Time
	told := 0              // calls until all nodes can know of the pause
	by := map[string]int{} // calls of each node, by path
	slack := &api{}
	slack.refuse = func(w http.ResponseWriter, r *http.Request) bool {
		calls = append(calls, time.Now())
		by[r.URL.Path]++
		if len(by) < 3 || !began.IsZero() {
			return false
		}
		began = time.Now()
		w.Header().Set("Retry-After", strconv.Itoa(int(rest/time.Second)))
		w.WriteHeader(http.StatusTooManyRequests)
		return true
	}
	far := httptest.NewServer(slack)
	t.Cleanup(far.Close)
	var nodes []*daemon
	for n := range 3 {
		nodes = append(nodes, serve(t, daemonConfig{redis: fmt.Sprintf("url: %q", server.URL()), sinks: team(
			fmt.Sprintf("%s/%d", far.URL, n), "token: xoxb-s3cret-token, channel: C0GENERAL, thread: none, rate: "+
				"10/s, burst: 1")}))
	}
	events := 0
	testkit.Eventually(t, "a rest, and two seconds of it", func() error {
		nodes[events%3].Publish(t, "hub-1", "application/json", round(events), nil)
		events++
		slack.mu.Lock()
		defer slack.mu.Unlock()
		for _, rate := range store.Keys(t.Context(), "hubrelay:rate:*").Val() {
			if seen.IsZero() && store.HExists(t.Context(), rate, "rest").Val() {
				seen = time.Now()
			}
		}
		if told == 0 && !seen.IsZero() && time.Since(seen) > time.Second { // earlier calls have arrived
			told = len(calls)
		}
		if told == 0 || time.Since(began) < rest/2 {
			return fmt.Errorf("calls of %v, a rest since %s", by, began)
		}
		return nil
	})
	several := regexp.MustCompile(`^(\d+) × `)
	testkit.Eventually(t, "all deliveries", func() error {
		slack.mu.Lock()
		defer slack.mu.Unlock()
		total := 0
		for _, m := range slack.messages {
			if count := several.FindStringSubmatch(fmt.Sprint(m["text"])); count != nil {
				more, _ := strconv.Atoi(count[1])
				total += more
			} else {
				total++
			}
		}
		if total != events {
			return fmt.Errorf("%d of %d", total, events)
		}
		return nil
	})
	slack.mu.Lock()
	defer slack.mu.Unlock()
	during := 0
	for _, at := range calls[told:] {
		if at.Sub(began) < rest-50*time.Millisecond {
			during++
		}
	}
	if during > len(nodes) { // each node may have one call in progress
		t.Errorf("%d calls during a rest of %s that Redis knew of", during, rest)
	}
}
