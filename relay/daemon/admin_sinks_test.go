package daemon

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/hubrelay/hubrelay/internal/redistest"
	"github.com/hubrelay/hubrelay/internal/streamid"
	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/client"
)

// fakeSink rejects the topics or deliveries that a test selects, and records what it accepted.
type fakeSink struct {
	mu       sync.Mutex
	reject   string // a topic
	err      error  // for all deliveries
	accepted []relay.Notification
}

func (s *fakeSink) Deliver(_ context.Context, d relay.Delivery) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := d.Notifications[0]
	if s.err != nil {
		return s.err
	}
	if n.Topic == s.reject {
		return relay.Permanent(&relay.ResponseError{Status: 422, Body: "no, thanks"})
	}
	s.accepted = append(s.accepted, n)
	return nil
}

func (s *fakeSink) Close() error { return nil }

func (s *fakeSink) rejects(topic string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reject = topic
}

// take returns the IDs accepted so far, sorted, and clears the list.
func (s *fakeSink) take() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var ids []string
	for _, n := range s.accepted {
		ids = append(ids, n.ID)
	}
	slices.Sort(ids)
	s.accepted = nil
	return ids
}

func (s *fakeSink) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.accepted)
}

// runningDaemon is a daemon whose admin API is called without a socket.
type runningDaemon struct {
	t    *testing.T
	app  *Daemon
	at   Addresses
	hub  client.Client
	stop func()
}

func startDaemon(t *testing.T, s *fakeSink, redis, sinks string) *runningDaemon {
	t.Helper()
	kind := relay.SinkKind{
		Type: "memory", Config: func() relay.Config { return &noConfig{} },
		Open: func(relay.SinkSettings, relay.Config) (relay.Sink, error) { return s, nil },
	}
	cfg := loadConfig(t, kind, "127.0.0.1:0", sinks)
	cfg.Redis.URL = redis
	ready := make(chan Addresses, 1)
	a, err := New(cfg, Options{
		Version: "v0", Log: testkit.Log(t), Sinks: []relay.SinkKind{kind},
		Ready: func(at Addresses) { ready <- at },
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx) }()
	at := receive(t, ready, "the daemon to be ready")
	r := &runningDaemon{
		t: t, app: a, at: at, hub: client.Client{URL: "http://" + at.Public.String(), Key: testKey, Hub: "hub-1"},
	}
	r.stop = sync.OnceFunc(func() {
		cancel()
		if err := receive(t, ended, "Run to return"); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(r.stop)
	return r
}

func (r *runningDaemon) publish(topics ...string) []string {
	r.t.Helper()
	var body strings.Builder
	for _, topic := range topics {
		fmt.Fprintf(&body, "{\"topic\":%q}\n", topic)
	}
	ids, err := r.hub.Publish(r.t.Context(), "application/x-ndjson", "", []byte(body.String()))
	if err != nil {
		r.t.Fatal(err)
	}
	slices.Sort(ids)
	return ids
}

// call returns the decoded response. The status must be want.
func (r *runningDaemon) call(want int, method, path, body string) map[string]any {
	r.t.Helper()
	status, text := callAdmin(r.t, r.at.Admin, method, path, body)
	var response map[string]any
	if err := json.Unmarshal(text, &response); err != nil || status != want {
		r.t.Fatalf("%s %s: %d %s", method, path, status, text)
	}
	return response
}

// callAdmin calls the admin API on a unix socket.
func callAdmin(t testing.TB, socket net.Addr, method, path, body string) (status int, text []byte) {
	t.Helper()
	c := http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, socket.Network(), socket.String())
		},
	}}
	request, err := http.NewRequestWithContext(t.Context(), method, "http://127.0.0.1"+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	response, err := c.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	text, err = io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, text
}

func (r *runningDaemon) data(method, path, body string) map[string]any {
	r.t.Helper()
	data, ok := r.call(http.StatusOK, method, path, body)["data"].(map[string]any)
	if !ok {
		r.t.Fatalf("%s %s: no data", method, path)
	}
	return data
}

func (r *runningDaemon) waitForDeadLetters(n int) {
	r.t.Helper()
	testkit.WaitFor(r.t, fmt.Sprint(n, " dead letters"), func() bool {
		return r.data("GET", "/api/sinks/one", "")["dead"] == float64(n)
	})
}

const oneSink = `one: {type: memory, topics: ["job.*"]}`

func TestSinkAdmin_Operations(t *testing.T) {
	urls := map[string]string{"redis": redistest.Start(t).URL(), "memory": memoryURL}
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	defer http.DefaultTransport.(*http.Transport).CloseIdleConnections() //nolint:errcheck // it is one
	for name, url := range urls {
		t.Run(name, func(t *testing.T) {
			sink := &fakeSink{}
			r := startDaemon(t, sink, url, oneSink)
			defer r.stop()
			r.testPause(sink)
			r.testDeadLetters(sink)
			r.testReplay(sink)
			r.testTest(sink)
		})
	}
}

// If Redis is full, the sinks are listed with their counts, and a replay is rejected.
func TestSinkAdmin_FullRedis(t *testing.T) {
	t.Parallel()
	sink := &fakeSink{}
	server := redistest.Start(t)
	r := startDaemon(t, sink, server.URL(), oneSink)
	shows := func(key string, want float64) func() bool {
		return func() bool { return r.data("GET", "/api/sinks/one", "")[key] == want }
	}
	testkit.WaitFor(t, "the daemon to show its sink", shows("in_flight", 0))
	sink.mu.Lock()
	r.publish("job.created")
	testkit.WaitFor(t, "an attempt", shows("in_flight", 1))
	if err := server.Client().ConfigSet(t.Context(), "maxmemory", "1").Err(); err != nil {
		t.Fatal(err)
	}
	sink.mu.Unlock()
	testkit.WaitFor(t, "the end of the attempt", shows("in_flight", 0))
	testkit.WaitFor(t, "its count", shows("delivered", 1))
	err, _ := r.call(503, "POST", "/api/sinks/one/replay", `{"after":"0-0"}`)["error"].(map[string]any)
	if detail := fmt.Sprint(err["detail"]); err["code"] != "503.storage-full" ||
		!strings.Contains(detail, "0 were scheduled before") || !strings.Contains(detail, "then repeat") {
		t.Errorf("replay: got %v", err)
	}
}

func (r *runningDaemon) testPause(sink *fakeSink) {
	t := r.t
	if got := r.data("POST", "/api/sinks/one/pause", ""); got["state"] != "paused" || got["state_changed_at"] == nil ||
		got["type"] != "memory" {
		t.Errorf("pause: got %v", got)
	}
	ids := r.publish("job.created", "image.updated", "job.state.changed")
	testkit.WaitFor(t, "a backlog", func() bool { return r.data("GET", "/api/sinks/one", "")["waiting"] == 2.0 })
	// Queued notifications are not replayed.
	if got := r.data("POST", "/api/sinks/one/replay", `{"after":"0-0"}`); got["replayed"] != 0.0 ||
		got["skipped"] != 2.0 {
		t.Errorf("replay while paused: got %v", got)
	}
	if sink.count() != 0 {
		t.Error("a paused sink received a delivery")
	}
	if got := r.data("POST", "/api/sinks/one/resume", "{}"); got["state"] != "active" || got["state_changed_at"] != nil {
		t.Errorf("resume: got %v", got)
	}
	testkit.WaitForValue(t, "the backlog is delivered", 2, func() int { return sink.count() })
	if got := sink.take(); slices.Contains(ids, "") || len(got) != 2 || !slices.Contains(ids, got[0]) ||
		!slices.Contains(ids, got[1]) {
		t.Errorf("delivered %v of %v", got, ids)
	}
}

func (r *runningDaemon) testDeadLetters(sink *fakeSink) {
	t := r.t
	const letters = "/api/sinks/one/deadletters"
	sink.rejects("job.created")
	ids := r.publish("job.created", "job.created", "job.created")
	r.waitForDeadLetters(3)
	page := r.call(200, "GET", letters+"?limit=2&topics=job.*&hub_id=hub-1&since=1h", "")
	list, _ := page["data"].([]any)
	if len(list) != 2 || page["next"] == "" {
		t.Fatalf("first page: %v", page)
	}
	page = r.call(200, "GET", letters+"?after="+fmt.Sprint(page["next"]), "")
	if list, _ = page["data"].([]any); len(list) != 1 || page["next"] != "" {
		t.Errorf("second page: %v", page)
	}
	one := r.data("GET", letters+"/"+ids[0], "")
	attempts, _ := one["attempts"].([]any)
	events, _ := one["events"].([]any)
	if len(attempts) != 1 || len(events) != 1 || !strings.Contains(fmt.Sprint(events), "job.created") || one["id"] != ids[0] ||
		!strings.Contains(fmt.Sprint(attempts), "no, thanks") {
		t.Errorf("shown: %v", one)
	}
	r.call(404, "GET", letters+"/nobody", "")

	sink.rejects("")
	if got := r.data("POST", letters+"/replay", fmt.Sprintf(`{"ids":[%q,"nobody"]}`, ids[0])); got["changed"] != 1.0 ||
		fmt.Sprint(got["unchanged"]) != "[map[id:nobody reason:missing]]" {
		t.Errorf("replayed: %v", got)
	}
	testkit.WaitForValue(t, "the replayed one is delivered", 1, func() int { return sink.count() })
	if got := r.data("POST", letters+"/drop", fmt.Sprintf(`{"ids":[%q]}`, ids[1])); got["changed"] != 1.0 {
		t.Errorf("dropped: %v", got)
	}
	if got := r.data("POST", letters+"/replay", `{"all":true,"topics":["*.error"]}`); got["changed"] != 0.0 {
		t.Errorf("replayed by another topic: %v", got)
	}
	if got := r.data("POST", letters+"/replay", `{"all":true}`); got["changed"] != 1.0 {
		t.Errorf("replayed all: %v", got)
	}
	testkit.WaitForValue(t, "the rest is delivered", 2, func() int { return sink.count() })
	if got := sink.take(); !slices.Equal(got, []string{ids[0], ids[2]}) {
		t.Errorf("delivered %v of %v", got, ids)
	}
	r.waitForDeadLetters(0)
	r.waitForNoRetries()
	testkit.WaitFor(t, "recent deliveries to be counted", func() bool { // they may be on the way to Redis
		got := r.data("GET", "/api/sinks/one", "")
		return got["delivered"] == 4.0 && got["last_success_at"] != nil
	})
}

// waitForNoRetries waits until all outcomes are stored. A delivery whose outcome is not stored yet is not replayed again.
func (r *runningDaemon) waitForNoRetries() {
	r.t.Helper()
	testkit.WaitFor(r.t, "no scheduled retries", func() bool {
		return r.data("GET", "/api/sinks/one", "")["retrying"] == 0.0
	})
}

func (r *runningDaemon) testReplay(sink *fakeSink) {
	t := r.t
	if got := r.data("POST", "/api/sinks/one/replay", `{"after":"2020-01-01T00:00:00Z"}`); got["replayed"] != 5.0 ||
		got["complete"] != (r.app.cfg.Redis.URL != memoryURL) { // miniredis does not report the number of added entries
		t.Errorf("replayed: %v", got)
	}
	testkit.WaitForValue(t, "all delivered again", 5, func() int { return sink.count() })
	r.waitForNoRetries()
	sink.take()
	later := time.Now().Add(time.Hour).Format(time.RFC3339)
	if got := r.data("POST", "/api/sinks/one/replay", `{"after":"`+later+`"}`); got["replayed"] != 0.0 {
		t.Errorf("replay after a future time: got %v", got)
	}
	r.testReplaySelection(sink)
	r.testDryRunOfScheduled(sink)
	r.call(422, "POST", "/api/sinks/one/replay", `{"after":"yesterday"}`)
	r.call(422, "POST", "/api/sinks/one/replay", `{"after":"0-0","until":"yesterday"}`)
	r.call(422, "POST", "/api/sinks/one/replay", `{"after":"0-0","topics":["Job"]}`)
	r.call(422, "POST", "/api/sinks/one/replay", `{"after":"0-0","topics":["job.creatd"]}`)
	r.call(422, "POST", "/api/sinks/one/replay", `{}`)
}

// testReplaySelection replays parts of the five notifications.
func (r *runningDaemon) testReplaySelection(sink *fakeSink) {
	t := r.t
	r.data("POST", "/api/sinks/one/replay", `{"after":"0-0"}`)
	testkit.WaitForValue(t, "all delivered again", 5, func() int { return sink.count() })
	r.waitForNoRetries()
	sink.mu.Lock()
	all := slices.SortedFunc(slices.Values(sink.accepted), func(a, b relay.Notification) int {
		return streamid.Compare(a.Cursor, b.Cursor)
	})
	sink.mu.Unlock()
	sink.take()
	cursor := r.streamCursor(3)
	now := time.Now().Add(time.Hour).Format(time.RFC3339)
	for body, want := range map[string]int{
		`{"after":"0-0","dry_run":true}`:                                                     5,
		`{"after":"0-0","until":"` + now + `","dry_run":true}`:                               5,
		`{"after":"0-0","until":"2020-01-01T00:00:00Z"}`:                                     0,
		`{"after":"0-0","topics":["job.*,!job.created"]}`:                                    1,
		`{"after":"0-0","topics":["job.created","container.error"]}`:                         4,
		`{"after":"0-0","hub_id":"another"}`:                                                 0,
		`{"after":"0-0","hub_id":"` + all[0].Hub + `"}`:                                      5,
		`{"event_ids":["` + all[1].ID + `","` + all[3].ID + `","000000000000000000000000"]}`: 2,
		`{"after":"` + all[1].Cursor + `"}`:                                                  3,
		`{"after":"` + cursor + `"}`:                                                         2,
	} {
		if got := r.data("POST", "/api/sinks/one/replay", body); got["replayed"] != float64(want) {
			t.Errorf("replay of %s: got %v, want %d", body, got, want)
		}
		if !strings.Contains(body, "dry_run") {
			testkit.WaitForValue(t, "the delivery of "+body, want, func() int { return sink.count() })
			r.waitForNoRetries()
		}
		if n := len(sink.take()); strings.Contains(body, "dry_run") && n > 0 {
			t.Errorf("a dry run delivered %d", n)
		}
	}
}

// testDryRunOfScheduled counts the five notifications while their deliveries are scheduled.
func (r *runningDaemon) testDryRunOfScheduled(sink *fakeSink) {
	r.data("POST", "/api/sinks/one/pause", "")
	r.data("POST", "/api/sinks/one/replay", `{"after":"0-0"}`)
	got := r.data("POST", "/api/sinks/one/replay", `{"after":"0-0","dry_run":true}`)
	if got["replayed"] != 0.0 || got["skipped"] != 5.0 {
		r.t.Errorf("got %v, want 5 skipped events", got)
	}
	r.data("POST", "/api/sinks/one/resume", "")
	testkit.WaitForValue(r.t, "the scheduled deliveries", 5, func() int { return sink.count() })
	r.waitForNoRetries()
	sink.take()
}

// streamCursor returns the cursor of the n-th job notification of the hub.
func (r *runningDaemon) streamCursor(n int) string {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), testkit.Patience)
	defer cancel()
	start := time.Now().Add(-time.Hour).Format(time.RFC3339)
	for event, err := range r.hub.Listen(ctx, client.ListenOptions{After: start, Topics: []string{"job.*"}}) {
		if err != nil {
			r.t.Fatal(err)
		}
		if n--; n == 0 {
			return event.Cursor
		}
	}
	r.t.Fatal("the stream ended early")
	return ""
}

func (r *runningDaemon) testTest(sink *fakeSink) {
	t := r.t
	if got := r.data("POST", "/api/sinks/one/test", ""); got["outcome"] != "delivered" {
		t.Errorf("tested: %v", got)
	}
	sink.mu.Lock()
	n := sink.accepted[0]
	sink.mu.Unlock()
	if !strings.HasPrefix(n.Topic, "job.") || !strings.Contains(string(n.Data), `"sample":true`) || n.ID == "" ||
		n.Hub != strings.Repeat("0", 24) {
		t.Errorf("got sample %+v %s", n, n.Data)
	}
	sink.rejects(n.Topic)
	if got := r.data("POST", "/api/sinks/one/test", ""); got["outcome"] != "permanent" || got["status"] != 422.0 {
		t.Errorf("tested: %v", got)
	}
	r.waitForDeadLetters(0)
}

// A sink that receives only the relay's own notifications is tested with one of them.
func TestSinkAdmin_TestsWithOperationalSample(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	for topics, want := range map[string]string{
		`"hubrelay.*"`:                relay.TopicSinkDisabled,
		`"hubrelay.deadletter.*"`:     relay.TopicDeadLetterCreated,
		`"hubrelay.*", "job.created"`: "job.created",
		`"hubrelay.*", "*"`:           "container.created",
	} {
		sink := &fakeSink{}
		r := startDaemon(t, sink, memoryURL, `one: {type: memory, topics: [`+topics+`]}`)
		if got := r.data("POST", "/api/sinks/one/test", ""); got["outcome"] != "delivered" {
			t.Errorf("%s: %v", topics, got)
		} else if n := sink.accepted[0]; n.Topic != want || !strings.Contains(string(n.Data), `"sample":true`) {
			t.Errorf("%s: %s", topics, n.Data)
		}
		r.stop()
	}
}

func TestSinkAdmin_PauseAndForgetSurviveRestarts(t *testing.T) {
	url := redistest.Start(t).URL()
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	defer http.DefaultTransport.(*http.Transport).CloseIdleConnections() //nolint:errcheck // it is one
	sink := &fakeSink{}
	sink.rejects("job.created")
	r := startDaemon(t, sink, url, oneSink)
	r.publish("job.created")
	r.waitForDeadLetters(1)
	r.data("POST", "/api/sinks/one/pause", "")
	r.publish("job.state.changed")
	testkit.WaitFor(t, "a backlog", func() bool { return r.data("GET", "/api/sinks/one", "")["waiting"] == 1.0 })
	r.call(409, "POST", "/api/sinks/one/forget", "")
	r.call(404, "POST", "/api/sinks/other/pause", "")
	r.stop()

	r = startDaemon(t, sink, url, `one: {type: memory, topics: ["*"]}`)
	if got := r.data("GET", "/api/sinks/one", ""); got["state"] != "paused" || sink.count() != 0 {
		t.Errorf("after a restart: %v", got)
	}
	r.stop()

	r = startDaemon(t, sink, url, `two: {type: memory}`)
	list, _ := r.call(200, "GET", "/api/sinks", "")["data"].([]any)
	one, _ := list[0].(map[string]any)
	if len(list) != 2 || one["name"] != "one" || one["configured"] != false || one["waiting"] != 1.0 ||
		one["dead"] != 1.0 {
		t.Errorf("listed: %v", list)
	}
	r.call(409, "POST", "/api/sinks/one/replay", `{"after":"0-0"}`)
	r.call(409, "POST", "/api/sinks/one/pause", "")
	if got := fmt.Sprint(r.call(409, "POST", "/api/sinks/one/resume", "")); !strings.Contains(got, "'hubrelay sinks forget one'") {
		t.Errorf("resume of a removed sink: got %s", got)
	}
	r.call(200, "GET", "/api/sinks/one/deadletters", "")
	r.data("POST", "/api/sinks/one/forget", "")
	if got := r.data("GET", "/api/sinks/one", ""); got["waiting"] != 0.0 || got["state"] != "removed" ||
		got["dead"] != 1.0 {
		t.Errorf("after forget without dead letters: got %v", got)
	}
	r.data("POST", "/api/sinks/one/forget", `{"dead_letters":true}`)
	r.call(404, "GET", "/api/sinks/one", "")
	r.stop()
}
