package slack

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/samples"
	"github.com/hubrelay/hubrelay/sinks/sinktest"
)

const testToken = "xoxb-s3cret-token-0123456789"

// workspace is a double of Slack's Web API, made from its reference of chat.postMessage and chat.update: one token, channels,
// messages by their ts, and threads. It is not Slack.
type workspace struct {
	mu       sync.Mutex
	messages map[string][]map[string]any // by channel, in order
	calls    []string
	answer   func(method string, w http.ResponseWriter) bool // true where it has answered
	behave   sinktest.Behaviour
	done     chan struct{}
	ids      []string
	next     int
}

func newWorkspace(t testing.TB) (*workspace, string) {
	w := &workspace{messages: map[string][]map[string]any{}, done: make(chan struct{})}
	srv := httptest.NewServer(w)
	t.Cleanup(func() { close(w.done); srv.Close() })
	return w, srv.URL + "/api"
}

var (
	deliveryID     = regexp.MustCompile("Delivery `([0-9a-f]+)`")
	notificationID = regexp.MustCompile("Notification `([0-9a-f]+)`")
)

func (s *workspace) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	method := strings.TrimPrefix(r.URL.Path, "/api/")
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls = append(s.calls, method)
	if id := deliveryID.FindSubmatch(body); id != nil {
		s.ids = append(s.ids, string(id[1]))
	} else if id := notificationID.FindSubmatch(body); id != nil {
		s.ids = append(s.ids, string(id[1]))
	}
	fail := func(text string) {
		_, _ = fmt.Fprintf(w, `{"ok":false,"error":%q,"response_metadata":{"messages":["[ERROR] no"]}}`, text)
	}
	var m map[string]any
	switch {
	case s.answer != nil && s.answer(method, w):
	case r.Header.Get("Authorization") != "Bearer "+testToken || s.behave == sinktest.Leave:
		fail("token_revoked")
	case s.behave == sinktest.Fail:
		http.Error(w, "<html>busy "+testToken+"</html>", http.StatusServiceUnavailable)
	case s.behave == sinktest.Throttle:
		w.Header().Set("Retry-After", "30")
		http.Error(w, `{"ok":false,"error":"ratelimited"}`, http.StatusTooManyRequests)
	case s.behave == sinktest.Reject || json.Unmarshal(body, &m) != nil || m["text"] == "":
		fail("invalid_blocks")
	case s.behave == sinktest.Hang:
		s.mu.Unlock()
		<-s.done
		s.mu.Lock()
	default:
		s.apply(method, m, w, fail)
	}
}

func (s *workspace) apply(method string, m map[string]any, w http.ResponseWriter, fail func(string)) {
	channel := strings.Replace(fmt.Sprint(m["channel"]), "#billing", "C0BILLING", 1)
	find := func(ts any) map[string]any {
		for _, one := range s.messages[channel] {
			if one["ts"] == ts {
				return one
			}
		}
		return nil
	}
	switch method {
	case methodPost:
		if ts, threaded := m["thread_ts"]; threaded && find(ts) == nil {
			fail("thread_not_found")
			return
		}
		s.next++
		m["ts"] = fmt.Sprintf("1795235000.%06d", s.next)
		s.messages[channel] = append(s.messages[channel], m)
	case methodUpdate:
		one := find(m["ts"])
		if one == nil || !strings.HasPrefix(channel, "C0") {
			fail("message_not_found")
			return
		}
		for name, value := range m {
			one[name] = value
		}
		one["updated"] = true
	default:
		fail("unknown_method")
		return
	}
	_, _ = fmt.Fprintf(w, `{"ok":true,"channel":%q,"ts":%q,"message":{"text":%q}}`, channel, m["ts"], strings.Repeat("x", 3000))
}

// shown are a channel's messages: their first lines, replies indented.
func (s *workspace) shown(channel string) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []string
	for _, m := range s.messages[channel] {
		line := fmt.Sprint(m["text"])
		if m["thread_ts"] != nil {
			line = "  " + line
		}
		out = append(out, line)
	}
	return out
}

// notes is a relay.Memory of one process.
type notes struct {
	mu     sync.Mutex
	values map[string]string
	taken  map[string]bool
}

func newNotes() *notes { return &notes{values: map[string]string{}, taken: map[string]bool{}} }

func (n *notes) Take(_ context.Context, name string, _ time.Duration) (string, relay.Held, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.taken[name] {
		return "", nil, relay.ErrTaken
	}
	n.taken[name] = true
	return n.values[name], heldNote{n, name}, nil
}

type heldNote struct {
	*notes
	name string
}

func (h heldNote) Keep(_ context.Context, value string, _ time.Duration) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.values[h.name] = value
	delete(h.taken, h.name)
	return nil
}

func (h heldNote) Release(context.Context) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.taken, h.name)
	return nil
}

func openApp(t testing.TB, c *Config, memory relay.Memory) *Sink {
	t.Helper()
	c.AllowCIDRs = []string{"127.0.0.0/8"}
	if c.Token == "" && c.TokenFile == "" {
		c.Token = testToken
	}
	if c.Channel == "" {
		c.Channel = "C0GENERAL"
	}
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
	s := settings(io.Discard)
	s.Memory = memory
	sink, err := open(s, c, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = sink.Close() })
	return sink
}

func TestAppConformance(t *testing.T) {
	sinktest.Run(t, sinktest.Harness{
		RetryAfter: 30 * time.Second,
		Secrets:    []string{"s3cret"},
		Open: func(t *testing.T, b sinktest.Behaviour) (relay.Sink, func() []string) {
			w, url := newWorkspace(t)
			w.behave = b
			if b == sinktest.Absent {
				url = "http://127.0.0.1:1/api"
			}
			s := openApp(t, &Config{APIURL: url}, nil)
			return s, func() []string { w.mu.Lock(); defer w.mu.Unlock(); return append([]string(nil), w.ids...) }
		},
	})
}

// happened is a delivery of one event of a container, the n-th of the log.
func happened(n int, topic, id, state, problem string) relay.Delivery {
	data := fmt.Sprintf(`{"topic":%q,"object":{"id":%q,"state":%q,"error":%q},"context":{"hub_id":"h1","account_id":"","environments":[],`+
		`"dns_zones":[],"clusters":[],"containers":[%q]},"flags":null}`, topic, id, state, problem, id)
	note := relay.Notification{
		ID: fmt.Sprintf("6922f000%016x", n), Topic: topic, Hub: "h1", Data: []byte(data), Cursor: fmt.Sprintf("%d-0", 1763897344000+n*1000),
	}
	return relay.Delivery{ID: note.ID, Attempt: 1, Notifications: []relay.Notification{note}}
}

func TestThread(t *testing.T) {
	w, url := newWorkspace(t)
	memory := newNotes()
	s := openApp(t, &Config{APIURL: url, Channels: []Route{{Topics: []string{"billing.*"}, Channel: "#billing"}}}, memory)
	send := func(d relay.Delivery) {
		t.Helper()
		if err := s.Deliver(t.Context(), d); err != nil {
			t.Fatal(err)
		}
	}
	send(happened(1, "container.error", "c1", "", "no <space> left"))
	send(happened(2, "container.error", "c2", "", "other"))
	send(happened(4, "container.state.changed", "c1", "stopping", ""))
	send(happened(3, "container.updated", "c1", "", ""))               // late: a reply, and the first message stays
	send(happened(4, "container.state.changed", "c1", "stopping", "")) // a repeat of what is in the thread already
	s = openApp(t, &Config{APIURL: url}, memory)                       // after a restart, or a reload
	send(happened(5, "container.state.changed", "c1", "running", ""))
	send(happened(6, "container.error", "c1", "", "again")) // a new thread, since that one ended
	want := []string{
		"Container state changed: running", "Something went wrong", "  Container state changed: stopping", "  Container's details",
		"  Container state changed: running", "Something went wrong",
	}
	got := w.shown("C0GENERAL")
	if len(got) != len(want) {
		t.Fatalf("shown:\n%s", strings.Join(got, "\n"))
	}
	first, _ := json.Marshal(w.messages["C0GENERAL"][0])
	for _, text := range []string{"running", "Began with: Something went wrong with a container as a whole · no \\u0026lt;space\\u0026gt; left", "3 updates below", "#2f81d6"} {
		if !strings.Contains(string(first), text) {
			t.Errorf("the first message lacks %s: %s", text, first)
		}
	}
	for i, one := range got {
		if strings.HasPrefix(want[i], "  ") != strings.HasPrefix(one, "  ") {
			t.Errorf("message %d is %q, want %q", i, one, want[i])
		}
	}
	one := openApp(t, &Config{APIURL: url, Channels: []Route{{Topics: []string{"billing.*"}, Channel: "#billing"}}}, memory)
	if err := one.Deliver(t.Context(), samples.Deliveries([]string{"billing.credit.error"})[0]); err != nil || len(w.shown("C0BILLING")) != 1 {
		t.Errorf("%v: %s", err, w.shown("C0BILLING"))
	}
}

// TestThreadAtOnce delivers for one container from many goroutines of two sinks: there is one thread.
func TestThreadAtOnce(t *testing.T) {
	w, url := newWorkspace(t)
	memory := newNotes()
	sinks := []*Sink{openApp(t, &Config{APIURL: url}, memory), openApp(t, &Config{APIURL: url}, memory)}
	var wg sync.WaitGroup
	const n = 12
	for i := range n {
		wg.Go(func() {
			if err := sinks[i%2].Deliver(t.Context(), happened(i, "container.error", "c1", "", fmt.Sprint("no ", i))); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	roots := 0
	for _, line := range w.shown("C0GENERAL") {
		if !strings.HasPrefix(line, "  ") {
			roots++
			if !strings.Contains(line, "no 11") {
				t.Errorf("the first message shows %s, which is not the latest", line)
			}
		}
	}
	if roots != 1 || len(w.shown("C0GENERAL")) != n {
		t.Errorf("%d threads:\n%s", roots, strings.Join(w.shown("C0GENERAL"), "\n"))
	}
}

// TestThreadMishaps has a first message that is deleted, and a limit between reply and update.
func TestThreadMishaps(t *testing.T) {
	w, url := newWorkspace(t)
	s := openApp(t, &Config{APIURL: url}, newNotes())
	if err := s.Deliver(t.Context(), happened(1, "container.error", "c1", "", "a")); err != nil {
		t.Fatal(err)
	}
	w.answer = func(method string, r http.ResponseWriter) bool {
		if method == methodUpdate {
			r.Header().Set("Retry-After", "7")
			r.WriteHeader(http.StatusTooManyRequests)
		}
		return method == methodUpdate
	}
	d := happened(2, "container.error", "c1", "", "b")
	err := s.Deliver(t.Context(), d)
	if outcome, wait := relay.Classify(err); outcome != relay.OutcomeRetry || wait != 7*time.Second {
		t.Errorf("%v: %s after %s", err, outcome, wait)
	}
	w.mu.Lock()
	w.answer = nil
	w.mu.Unlock()
	if err := s.Deliver(t.Context(), d); err != nil {
		t.Fatal(err)
	}
	if got := w.shown("C0GENERAL"); len(got) != 2 || !strings.Contains(got[0], "b") {
		t.Errorf("the reply was repeated, or the first message not brought up to date: %q", got)
	}
	w.mu.Lock()
	w.messages["C0GENERAL"] = w.messages["C0GENERAL"][1:] // somebody deletes the first message
	w.mu.Unlock()
	if err := s.Deliver(t.Context(), happened(3, "container.error", "c1", "", "c")); err != nil {
		t.Fatal(err)
	}
	if got := w.shown("C0GENERAL"); len(got) != 2 || strings.HasPrefix(got[1], "  ") {
		t.Errorf("no new thread: %q", got)
	}
}

func TestAppErrors(t *testing.T) {
	for _, c := range []struct {
		status  int
		body    string
		outcome relay.Outcome
		want    string
	}{
		{200, `{"ok":false,"error":"invalid_auth"}`, relay.OutcomeGone, "give the bot token"},
		{200, `{"ok":false,"error":"account_inactive"}`, relay.OutcomeGone, "give the bot token"},
		{200, `{"ok":false,"error":"missing_scope","needed":"chat:write","provided":"incoming-webhook"}`, relay.OutcomeGone, "lacks the scope chat:write"},
		{200, `{"ok":false,"error":"channel_not_found"}`, relay.OutcomeRetry, "check the channel's id"},
		{200, `{"ok":false,"error":"not_in_channel"}`, relay.OutcomeRetry, "/invite @app"},
		{200, `{"ok":false,"error":"is_archived"}`, relay.OutcomeRetry, "unarchive it"},
		{200, `{"ok":false,"error":"msg_too_long"}`, relay.OutcomePermanent, "too long"},
		{200, `{"ok":false,"error":"invalid_blocks","response_metadata":{"messages":["[ERROR] must be less than 3001 characters"]}}`, relay.OutcomePermanent, "must be less than 3001 characters"},
		{200, `{"ok":false,"error":"ratelimited"}`, relay.OutcomeRetry, "too many messages"},
		{200, `{"ok":false,"error":"internal_error"}`, relay.OutcomeRetry, "internal_error"},
		{200, `{"ok":false}`, relay.OutcomeRetry, "does api_url lead to Slack"},
		{200, `{"ok":true}`, relay.OutcomeRetry, "without a message's ts"},
		{200, `<html>log in ` + testToken + `</html>`, relay.OutcomeRetry, "does api_url lead to Slack"},
		{200, strings.Repeat("[", 2<<20), relay.OutcomeRetry, "does api_url lead to Slack"},
		{500, "<html>", relay.OutcomeRetry, "answered 500"},
		{302, "", relay.OutcomeRetry, "answered 302"},
	} {
		w, url := newWorkspace(t)
		w.answer = func(_ string, r http.ResponseWriter) bool {
			r.Header().Set("Location", "http://127.0.0.1:1/")
			r.WriteHeader(c.status)
			_, _ = io.WriteString(r, c.body)
			return true
		}
		err := openApp(t, &Config{APIURL: url}, newNotes()).Deliver(t.Context(), happened(1, "container.error", "c1", "", "a"))
		outcome, _ := relay.Classify(err)
		if outcome != c.outcome || err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(fmt.Sprintf("%+v", err), "s3cret") {
			t.Errorf("%d %.80s: %s, %v", c.status, c.body, outcome, err)
		}
	}
}

func TestAppExplain(t *testing.T) {
	w, url := newWorkspace(t)
	s := openApp(t, &Config{APIURL: url}, newNotes())
	d := happened(1, "container.error", "c1", "", "a")
	e, err := s.Explain(d)
	if err != nil || strings.Contains(fmt.Sprintf("%+v %s", e, e.Payload), "s3cret") || e.Target != url+"/chat.postMessage" {
		t.Fatalf("%+v, %v", e, err)
	}
	if err := s.Deliver(t.Context(), d); err != nil {
		t.Fatal(err)
	}
	delete(w.messages["C0GENERAL"][0], "ts")
	sent, _ := json.Marshal(w.messages["C0GENERAL"][0])
	var a, b map[string]any
	if json.Unmarshal(sent, &a) != nil || json.Unmarshal(e.Payload, &b) != nil || fmt.Sprint(a) != fmt.Sprint(b) {
		t.Errorf("explained %s, sent %s", e.Payload, sent)
	}
}

func TestAppSettings(t *testing.T) {
	for _, c := range []struct {
		config Config
		want   string
	}{
		{Config{Token: testToken}, "channel is missing beside the token"},
		{Config{Token: testToken, URL: "https://hooks.slack.com/services/a/b/c"}, "token is given beside"},
		{Config{Token: "s3cret", Channel: "C0123456789"}, "token is no token of Slack"},
		{Config{Token: testToken, TokenFile: "x", Channel: "C0123456789"}, "token_file is given beside token"},
		{Config{TokenFile: "testdata/none", Channel: "C0123456789"}, "token_file cannot be read"},
		{Config{Token: testToken, Channel: "general"}, "channel is no channel"},
		{Config{Token: testToken, Channel: "#general", Channels: []Route{{Channel: "#x"}}}, "channels.0 takes everything"},
		{Config{Token: testToken, Channel: "#general", Channels: []Route{{Topics: []string{"A"}, Channel: "#x"}}}, "channels.0.topics"},
		{Config{Token: testToken, Channel: "#general", Channels: []Route{{Topics: []string{"a"}}}}, "channels.0.channel is no channel"},
		{Config{Token: testToken, Channel: "#general", Thread: "x"}, "thread is not known"},
		{Config{Token: testToken, Channel: "#general", ThreadTTL: time.Second}, "thread_ttl is out of range"},
		{Config{Token: testToken, Channel: "#general", APIURL: "slack.com"}, "api_url must begin with"},
		{Config{URL: "https://hooks.slack.com/services/a/b/c", Channel: "#x"}, "channel says nothing to an incoming webhook"},
		{Config{URL: "https://hooks.slack.com/services/a/b/c", TextTemplate: "{{ .Topik }}"}, "text_template line 1, column 4: at .Topik: there is no .Topik here"},
		{Config{URL: "https://hooks.slack.com/services/a/b/c", BlocksTemplate: `[{"type": "section", "text": {{ .Object.Error }} }]`}, "blocks_template what it renders is not JSON"},
		{Config{URL: "https://hooks.slack.com/services/a/b/c", BlocksTemplate: `[]`}, "empty list of blocks"},
		{Config{URL: "https://hooks.slack.com/services/a/b/c", LinkTemplate: `portal/{{ .Hub }}`}, "which is no address"},
		{Config{URL: "https://hooks.slack.com/services/a/b/c", LinkTemplate: `{{ if .Context.Containers }}https://portal.example.com/{{ index .Context.Containers 0 | urlquery }}{{ end }}`}, ""},
	} {
		err := c.config.Validate()
		if err == nil {
			err = c.config.Rehearse("s", samples.Deliveries([]string{"container.error", "job.created"}))
		}
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) || err != nil && strings.Contains(err.Error(), "s3cret") {
			t.Errorf("got %v\nwant %s", err, c.want)
		}
	}
}

// TestTemplatesOfMessages shows that a producer calls nobody, and that links and blocks arrive.
func TestTemplatesOfMessages(t *testing.T) {
	d := happened(1, "container.error", "c1", "", "<!channel> & \"x\"")
	for _, c := range []struct {
		config Config
		want   string
	}{
		{Config{TextTemplate: "*{{ .Meaning }}* {{ .Object.Error }} {{ .Data.object.error }}"}, `"text":"*Something went wrong with a container as a whole* \u0026lt;!channel\u0026gt; \u0026amp; \"x\" \u0026lt;!channel\u0026gt; \u0026amp; \"x\""`},
		{Config{BlocksTemplate: `[{"type": "section", "text": {"type": "mrkdwn", "text": {{ toJson .Object.Error }}}}]`}, `"blocks":[{"type":"section","text":{"type":"mrkdwn","text":"\u0026lt;!channel\u0026gt; \u0026amp; \"x\""}}]`},
		{Config{LinkTemplate: "https://portal.example.com/{{ .Object.ID }}?a=1&b=2"}, `\u003chttps://portal.example.com/c1?a=1\u0026amp;b=2|Open\u003e`},
	} {
		_, url := newWorkspace(t)
		c.config.APIURL = url
		e, err := openApp(t, &c.config, nil).Explain(d)
		if err != nil || !strings.Contains(string(e.Payload), c.want) || strings.Contains(string(e.Payload), `\u003c!channel`) {
			t.Errorf("%s, %v\nwant %s", e.Payload, err, c.want)
		}
	}
}
