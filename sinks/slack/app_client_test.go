package slack

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/internal/samples"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/sinks/sinktest"
)

func openApp(t testing.TB, c *Config, memory relay.SharedState) *Sink {
	t.Helper()
	return openCounted(t, c, memory, nil)
}

// openCounted opens an app whose additional requests are passed to count.
func openCounted(t testing.TB, c *Config, memory relay.SharedState, count func(int)) *Sink {
	t.Helper()
	c.AllowCIDRs = []string{"127.0.0.0/8"}
	if c.Token == "" && c.TokenFile == "" {
		c.Token = testToken
	}
	if c.Channel == "" {
		c.Channel = "C0GENERAL"
	}
	if err := c.validate(); err != nil {
		t.Fatal(err)
	}
	s := settings(io.Discard)
	s.State, s.CountRequests = memory, count
	sink, err := open(s, c, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = sink.Close() })
	return sink
}

func TestAppConformance(t *testing.T) {
	t.Parallel()
	sinktest.Run(t, sinktest.Harness{
		RetryAfter: 30 * time.Second,
		Secrets:    []string{"s3cret"},
		Open: func(t *testing.T, b sinktest.Behavior) (relay.Sink, func() []string) {
			w, url := newWorkspace(t)
			w.behave = b
			if b == sinktest.Unreachable {
				url = "http://127.0.0.1:1/api"
			}
			s := openApp(t, &Config{APIURL: url}, nil)
			return s, func() []string { w.mu.Lock(); defer w.mu.Unlock(); return append([]string(nil), w.ids...) }
		},
	})
}

// escapeJSON writes each character of a text in ASCII as an escape sequence.
func escapeJSON(text string) string {
	var b strings.Builder
	for _, r := range text {
		fmt.Fprintf(&b, `\u%04x`, r)
	}
	return b.String()
}

func TestAppErrors(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		status  int
		body    string
		outcome relay.Outcome
		want    string
	}{
		{200, `{"ok":false,"error":"invalid_auth"}`, relay.OutcomeGone, "set the bot token"},
		{200, `{"ok":false,"error":"account_inactive"}`, relay.OutcomeGone, "set the bot token"},
		{
			200, `{"ok":false,"error":"token_revoked"}`, relay.OutcomeGone,
			"status 200: token_revoked: Slack rejects the token: set the bot token",
		},
		{
			200, `{"ok":false,"error":"missing_scope","needed":"chat:write","provided":"incoming-webhook"}`,
			relay.OutcomeGone, "lacks the scope chat:write (it has incoming-webhook): add it",
		},
		{
			200, `{"ok":false,"error":"missing_scope","needed":"` + testToken + `"}`, relay.OutcomeGone,
			"lacks the scope (redacted): add it",
		},
		{
			200, `{"ok":false,"error":"missing_scope","needed":"` + escapeJSON(testToken) + `"}`, relay.OutcomeGone,
			"lacks the scope (redacted): add it",
		},
		{
			200, `{"ok":false,"error":"` + testToken + `","response_metadata":{"messages":["` + testToken + `"]}}`,
			relay.OutcomeRetry, "(redacted) ((redacted))",
		},
		{200, `{"ok":false,"error":"missing_scope"}`, relay.OutcomeGone, "lacks the scope chat:write: add it"},
		{
			200, `{"ok":false,"error":"channel_not_found"}`, relay.OutcomeRetry,
			"status 200: channel_not_found: there is no channel with this name or ID",
		},
		{
			200, `{"ok":false,"error":"not_in_channel"}`, relay.OutcomeRetry,
			"type /invite and the @name of the app there",
		},
		{200, `{"ok":false,"error":"is_archived"}`, relay.OutcomeRetry, "unarchive it"},
		{200, `{"ok":false,"error":"msg_too_long"}`, relay.OutcomePermanent, "too long"},
		{
			200, `{"ok":false,"error":"invalid_blocks","response_metadata":{"messages":["[ERROR] must be less than ` +
				`3001 characters"]}}`, relay.OutcomePermanent, "must be less than 3001 characters",
		},
		{200, `{"ok":false,"error":"ratelimited"}`, relay.OutcomeRetry, "too many messages"},
		{200, `{"ok":false,"error":"internal_error"}`, relay.OutcomeRetry, "internal_error"},
		{200, `{"ok":false}`, relay.OutcomeRetry, "check api_url"},
		{200, `{"ok":true,"channel":"C1","ts":"` + strings.Repeat("1", 65) + `"}`, relay.OutcomeRetry, "valid channel and ts"},
		{200, `{"ok":true}`, relay.OutcomeRetry, "without a valid channel and ts"},
		{200, `<html>log in ` + testToken + `</html>`, relay.OutcomeRetry, "check api_url"},
		{200, strings.Repeat("[", 2<<20), relay.OutcomeRetry, "check api_url"},
		{500, "<html>", relay.OutcomeRetry, "status 500"},
		{302, "", relay.OutcomeRetry, "status 302"},
	} {
		w, url := newWorkspace(t)
		w.answer = func(_ string, r http.ResponseWriter) bool {
			r.Header().Set("Location", "http://127.0.0.1:1/")
			r.WriteHeader(c.status)
			_, _ = io.WriteString(r, c.body)
			return true
		}
		err := openApp(t, &Config{APIURL: url}, newNotes()).Deliver(t.Context(),
			happened(1, "container.error", "c1", "", "a"))
		outcome, _ := relay.Classify(err)
		if outcome != c.outcome || err == nil || !strings.Contains(err.Error(), c.want) ||
			strings.Contains(fmt.Sprintf("%+v", err), "s3cret") {
			t.Errorf("%d %.80s: %s, %v", c.status, c.body, outcome, err)
		}
		if named := strings.HasPrefix(err.Error(),
			"chat.postMessage to C0GENERAL at 127.0.0.1:"); strings.Contains(c.body, `"ok":false,"error":`) &&
			!named && outcome != relay.OutcomeRetry {
			t.Errorf("it does not say which channel: %v", err)
		}
	}
}

func TestAppExplain(t *testing.T) {
	t.Parallel()
	w, url := newWorkspace(t)
	s := openApp(t, &Config{APIURL: url}, newNotes())
	d := happened(1, "container.error", "c1", "", "a")
	e, err := s.Preview(t.Context(), d)
	if err != nil || strings.Contains(fmt.Sprintf("%+v %s", e, e.Payload), "s3cret") ||
		e.Target != url+"/chat.postMessage" {
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
	t.Parallel()
	for _, c := range []struct {
		config Config
		want   string
	}{
		{Config{Token: testToken}, "channel is missing: the token requires"},
		{Config{Token: testToken, URL: "https://hooks.slack.com/services/a/b/c"}, "token conflicts with"},
		{Config{Token: "s3cret", Channel: "C0123456789"}, "token is not a token of Slack"},
		{Config{Token: testToken, TokenFile: "x", Channel: "C0123456789"}, "token_file conflicts with token"},
		{Config{TokenFile: "testdata/none", Channel: "C0123456789"}, "token_file cannot be read"},
		{Config{Token: testToken, Channel: "general"}, "channel is not a channel"},
		{
			Config{Token: testToken, Channel: "#general", Channels: []Route{{Channel: "#x"}}},
			"channels.0 matches everything",
		},
		{Config{
			Token: testToken, Channel: "#general", Channels: []Route{{Topics: []string{"A"}, Channel: "#x"}},
		}, "channels.0.topics"},
		{
			Config{Token: testToken, Channel: "#general", Channels: []Route{{Topics: []string{"a"}}}},
			"channels.0.channel is not a channel",
		},
		{Config{Token: testToken, Channel: "#general", Thread: "x"}, "thread is unknown"},
		{Config{Token: testToken, Channel: "#general", ThreadTTL: time.Second}, "thread_ttl is out of range"},
		{Config{Token: testToken, Channel: "#general", APIURL: "slack.com"}, "api_url must begin with"},
		{
			Config{URL: "https://hooks.slack.com/services/a/b/c", Channel: "#x"},
			"channel has no effect with an incoming webhook",
		},
		{
			Config{URL: "https://hooks.slack.com/services/a/b/c", TextTemplate: "{{ .Topik }}"},
			"text_template line 1, column 4: at .Topik: there is no .Topik here",
		},
		{Config{
			URL:            "https://hooks.slack.com/services/a/b/c",
			BlocksTemplate: `[{"type": "section", "text": {{ .Object.Error }} }]`,
		}, "blocks_template what it renders is not JSON"},
		{Config{URL: "https://hooks.slack.com/services/a/b/c", BlocksTemplate: `[]`}, "empty list of blocks"},
		{
			Config{URL: "https://hooks.slack.com/services/a/b/c", LinkTemplate: `portal/{{ .Hub }}`},
			"which is no address",
		},
		{Config{
			URL: "https://hooks.slack.com/services/a/b/c",
			LinkTemplate: `{{ if .Context.Containers }}https://portal.example.com/{{ index .Context.Containers 0 | ` +
				`urlquery }}{{ end }}`,
		}, ""},
	} {
		err := c.config.validate()
		if err == nil {
			err = c.config.validateSamples(t.Context(), "s",
				samples.Deliveries([]string{"container.error", "job.created"}))
		}
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) ||
			err != nil && strings.Contains(err.Error(), "s3cret") {
			t.Errorf("got %v\nwant %s", err, c.want)
		}
	}
}

// TestTemplatesOfMessages shows that a producer cannot mention users, and that links and blocks work.
func TestTemplatesOfMessages(t *testing.T) {
	t.Parallel()
	d := happened(1, "container.error", "c1", "", "<!channel> & \"x\"")
	for _, c := range []struct {
		config Config
		want   string
	}{
		{
			Config{TextTemplate: "*{{ .Meaning }}* {{ .Object.Error }} {{ .Data.object.error }}"},
			`"text":"*Something went wrong with a container as a whole* \u0026lt;!channel\u0026gt; \u0026amp; \"x\" ` +
				`\u0026lt;!channel\u0026gt; \u0026amp; \"x\""`,
		},
		{Config{
			BlocksTemplate: `[{"type": "section", "text": {"type": "mrkdwn", "text": {{ toJson .Object.Error }}}}]`,
		}, `"blocks":[{"type":"section","text":{"type":"mrkdwn","text":"\u0026lt;!channel\u0026gt; \u0026amp; ` +
			`\"x\"","verbatim":true}}]`},
		{
			Config{LinkTemplate: "https://portal.example.com/{{ .Object.ID }}?a=1&b=2"},
			`\u003chttps://portal.example.com/c1?a=1\u0026amp;b=2|Open\u003e`,
		},
	} {
		_, url := newWorkspace(t)
		c.config.APIURL = url
		e, err := openApp(t, &c.config, nil).Preview(t.Context(), d)
		if err != nil || !strings.Contains(string(e.Payload), c.want) ||
			strings.Contains(string(e.Payload), `\u003c!channel`) {
			t.Errorf("%s, %v\nwant %s", e.Payload, err, c.want)
		}
	}
}
