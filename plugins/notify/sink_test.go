package notify

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/relay"
)

// The services are doubles, made from what their documentation says of the requests they take and the answers they give. Their
// hosts lead to a server of the test.

// double is the server behind all hosts.
type double struct {
	mu     sync.Mutex
	asked  []asked
	answer func(host string, w http.ResponseWriter, r *http.Request)
}

type asked struct{ method, url, title, body string }

// behind opens a sink whose requests, whatever their host, come to a double. Since the process' default transport is
// the sink's, tests of one are not parallel.
func behind(t *testing.T, answer func(host string, w http.ResponseWriter, r *http.Request), config Config) (*Sink, *double) {
	t.Helper()
	d := &double{answer: answer}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		d.mu.Lock()
		d.asked = append(d.asked, asked{r.Method, r.Header.Get("X-Url"), r.Header.Get("Title"), string(body)})
		d.mu.Unlock()
		r.Header.Set("X-Body", strings.ReplaceAll(string(body), "\n", " "))
		d.answer(r.Header.Get("X-Host"), w, r)
	}))
	t.Cleanup(server.Close)
	s := New(&config)
	s.transport.next = redirected(server.URL)
	use(t, s)
	if err := config.Validate(); err != nil {
		t.Fatal(err)
	}
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	return s, d
}

// use makes the sink's transport the process' until the test ends.
func use(t *testing.T, s *Sink) {
	t.Helper()
	before := http.DefaultTransport
	http.DefaultTransport = s.Transport()
	t.Cleanup(func() { http.DefaultTransport = before })
}

// redirected sends every request to one server, and tells it the host that was meant.
type redirected string

func (to redirected) RoundTrip(r *http.Request) (*http.Response, error) {
	target, err := url.Parse(string(to))
	if err != nil {
		return nil, err
	}
	r = r.Clone(r.Context())
	r.Header.Set("X-Url", r.URL.String())
	r.Header.Set("X-Host", r.URL.Host)
	r.URL.Scheme, r.URL.Host = target.Scheme, target.Host
	return plain.RoundTrip(r)
}

var plain = &http.Transport{DisableKeepAlives: true}

// good is what each service answers to what it takes.
func good(host string, w http.ResponseWriter, r *http.Request) {
	switch {
	case strings.Contains(host, "discord"):
		w.WriteHeader(http.StatusNoContent)
	case strings.Contains(host, "telegram"):
		_, _ = io.WriteString(w, `{"ok":true,"result":{"message_id":1,"chat":{"id":667,"type":"private"}}}`)
	case strings.Contains(host, "matrix"):
		_, _ = io.WriteString(w, `{"event_id":"$1","room_id":"!room:matrix.example.com","access_token":"at-secret-123","flows":[{"type":"m.login.password"}]}`)
	case strings.Contains(host, "pushover"):
		_, _ = io.WriteString(w, `{"status":1,"request":"1"}`)
	case strings.Contains(host, "pushbullet"):
		// The push that was made comes back.
		_, _ = io.WriteString(w, strings.Replace(r.Header.Get("X-Body"), "{", `{"active":true,"iden":"1",`, 1))
	case strings.Contains(host, "rocket"):
		_, _ = io.WriteString(w, `{"success":true}`)
	case strings.Contains(host, "zulip"):
		_, _ = io.WriteString(w, `{"result":"success","msg":"","id":1}`)
	case strings.Contains(host, "office"):
		_, _ = io.WriteString(w, "1")
	default:
		_, _ = io.WriteString(w, `{"id":1,"message":"x","title":"x"}`)
	}
}

const hidden = "s3cret-not-to-be-seen"

func failed() relay.Delivery {
	data := `{"topic":"container.error","object":{"id":"o-1","state":"failed","error":"call @everyone"},"context":{"hub_id":"hub-1","containers":["c-1"]}}`
	return relay.Delivery{ID: "6740a1b20000000000000001", Attempt: 1, Notifications: []relay.Notification{{
		ID: "6740a1b20000000000000001", Topic: "container.error", Hub: "hub-1", Data: []byte(data),
	}}}
}

// TestServices wants the request of each service to pass our transport, and to say what happened.
func TestServices(t *testing.T) {
	for scheme, c := range map[string]struct{ url, asks string }{
		"discord":    {"discord://" + hidden + "@123456789012345678", "https://discord.com/api/webhooks/123456789012345678/" + hidden},
		"googlechat": {"googlechat://chat.googleapis.com/v1/spaces/FOO/messages?key=bar&token=" + hidden, "https://chat.googleapis.com/v1/spaces/FOO/messages"},
		"gotify":     {"gotify://gotify.example.com/AzyoeNS.D4iJLVa", "https://gotify.example.com/message"},
		"matrix":     {"matrix://:" + hidden + "@matrix.example.com?rooms=!room:matrix.example.com", "https://matrix.example.com/_matrix/client/"},
		"mattermost": {"mattermost://mattermost.example.com/" + hidden, "https://mattermost.example.com/hooks/" + hidden},
		"ntfy":       {"ntfy://ntfy.sh/" + hidden, "https://ntfy.sh/" + hidden},
		"pushbullet": {"pushbullet://o.abcdefghijklmnopqrstuvwxyz012345", "https://api.pushbullet.com/v2/pushes"},
		"pushover":   {"pushover://:" + hidden + "@userkey12345", "https://api.pushover.net/1/messages.json"},
		"rocketchat": {"rocketchat://rocket.example.com/tokenA1234/" + hidden, "https://rocket.example.com/hooks/tokenA1234/" + hidden},
		"teams": {
			"teams://11111111-4444-4444-8444-cccccccccccc@22222222-4444-4444-8444-cccccccccccc/33333333012222222222333333333344/44444444-4444-4444-8444-cccccccccccc/V2ESyij_gAljSoUQHvZoZYzlpAoAXExyOl26dlf1xHEx05?host=contoso.webhook.office.com",
			"https://contoso.webhook.office.com/webhookb2/11111111-4444-4444-8444-cccccccccccc@22222222-4444-4444-8444-cccccccccccc/IncomingWebhook/",
		},
		"telegram": {"telegram://12345:" + hidden + "@telegram?chats=667", "https://api.telegram.org/bot12345:" + hidden + "/sendMessage"},
		"zulip":    {"zulip://bot%40example.com:" + hidden + "@example.zulipchat.com?stream=foo&topic=bar", "https://bot%40example.com:" + hidden + "@example.zulipchat.com/api/v1/messages"},
	} {
		t.Run(scheme, func(t *testing.T) {
			s, d := behind(t, good, Config{URLs: []string{c.url}})
			if err := s.Deliver(t.Context(), failed()); err != nil {
				t.Fatal(err)
			}
			if len(d.asked) == 0 {
				t.Fatal("nothing was asked")
			}
			last := d.asked[len(d.asked)-1]
			if !strings.HasPrefix(last.url, c.asks) {
				t.Errorf("it asked %s, not %s", last.url, c.asks)
			}
			all, err := url.QueryUnescape(strings.ReplaceAll(last.title+" "+last.body, "%", "%25"))
			if err != nil {
				t.Fatal(err)
			}
			if form, err := url.ParseQuery(last.body); err == nil && strings.Contains(last.body, "%20") || strings.Contains(last.body, "+") {
				all += " " + form.Get("message") + form.Get("title") + form.Get("content")
			}
			for _, want := range []string{"[PROBLEM] Something went wrong", "container.error", "c-1"} {
				if !strings.Contains(all, want) {
					t.Errorf("%q is not in what it said:\n%s", want, all)
				}
			}
			if knownServices()[scheme].mentions && strings.Contains(last.body, "@everyone") {
				t.Errorf("it calls everyone:\n%s", last.body)
			}
			explained(t, s, d.asked)
		})
	}
	if n := len(knownServices()); n != 12 {
		t.Errorf("there are %d services, and 12 are tried here", n)
	}
}

// explained wants the explanation to show what came, but for secrets, and to ask nobody.
func explained(t *testing.T, s *Sink, came []asked) {
	t.Helper()
	said, err := s.Explain(failed())
	if err != nil {
		t.Fatal(err)
	}
	if len(said.Followups)+1 != len(came) {
		t.Errorf("%d requests are explained, and %d came", len(said.Followups)+1, len(came))
	}
	destinations, err := s.config.parseDestinations()
	if err != nil {
		t.Fatal(err)
	}
	for i, one := range append([]relay.Explanation{said}, said.Followups...) {
		if i < len(came) && (one.Method != came[i].method || string(one.Payload) != destinations[0].redact(came[i].body)) {
			t.Errorf("explained is %s\n%s\nand %s\n%s came", one.Method, one.Payload, came[i].method, came[i].body)
		}
		for _, secret := range []string{hidden, "AzyoeNS", "abcdefghijklmnop", "222222222333", "userkey12345"} {
			if strings.Contains(fmt.Sprintf("%s", one), secret) {
				t.Errorf("%s shows a secret", one)
			}
		}
	}
}

// TestExplain wants all destinations in their order, of the sink that was not started, and nobody asked.
func TestExplain(t *testing.T) {
	s := New(&Config{URLs: []string{"ntfy://ntfy.sh/" + hidden, "gotify://gotify.example.com/AzyoeNS.D4iJLVa"}, URLFiles: []string{file(t, "telegram://12345:"+hidden+"@telegram?chats=667,668\n")}})
	use(t, s)
	said, err := s.Explain(failed())
	if err != nil || len(said.Followups) != 3 {
		t.Fatalf("got %+v (%v)", said, err)
	}
	var names []string
	for _, one := range append([]relay.Explanation{said}, said.Followups...) {
		names = append(names, one.Headers[0].Value)
	}
	if got := strings.Join(names, " "); got != "ntfy (urls.0) gotify (urls.1) telegram (url_files.0) telegram (url_files.0)" {
		t.Errorf("got %s", got)
	}
	if !strings.Contains(string(said.Payload), "c-1") || !strings.Contains(fmt.Sprint(said.Headers), "Something went wrong") || said.Target != "https://ntfy.sh/…" {
		t.Errorf("got %s", said)
	}
	if _, err := New(&Config{URLFiles: []string{"/none"}}).Explain(failed()); err == nil {
		t.Error("without its file it is explained")
	}
}

// TestHiddenHoweverWritten has a secret that URLs, forms and JSON write differently.
func TestHiddenHoweverWritten(t *testing.T) {
	s := New(&Config{URLs: []string{"matrix://bot:pa%26ss%22word@matrix.example.com?rooms=!room:matrix.example.com"}})
	use(t, s)
	said, err := s.Explain(failed())
	if err != nil {
		t.Fatal(err)
	}
	if shown := fmt.Sprintf("%s", said); !strings.Contains(shown, `"password":"…"`) {
		t.Errorf("explained is %s", shown)
	}
	list, err := s.config.parseDestinations()
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{`pa&ss"word`, `pa%26ss%22word`, `pa&ss%22word`, `pa&ss\"word`, `pa\u0026ss\"word`} {
		if got := list[0].redact("<" + text + ">"); got != "<…>" {
			t.Errorf("of %s remains %s", text, got)
		}
	}
}

func TestAnswers(t *testing.T) {
	for _, c := range []struct {
		status int
		want   relay.Outcome
		after  time.Duration
	}{
		{http.StatusBadRequest, relay.OutcomePermanent, 0},
		{http.StatusRequestEntityTooLarge, relay.OutcomePermanent, 0},
		{http.StatusUnauthorized, relay.OutcomeRetry, 0},
		{http.StatusNotFound, relay.OutcomeRetry, 0},
		{http.StatusTooManyRequests, relay.OutcomeRetry, 7 * time.Second},
		{http.StatusBadGateway, relay.OutcomeRetry, 0},
		{http.StatusFound, relay.OutcomeRetry, 0},
	} {
		for _, to := range []string{
			"ntfy://ntfy.sh/" + hidden, "telegram://12345:" + hidden + "@telegram?chats=667", "discord://" + hidden + "@123456789012345678",
			"pushover://:" + hidden + "@userkey12345",
		} {
			s, d := behind(t, func(_ string, w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Retry-After", "7")
				w.Header().Set("Location", "https://elsewhere.example.com/")
				w.WriteHeader(c.status)
				_, _ = io.WriteString(w, `{"ok":false,"description":"it is `+hidden+`, and `+strings.Repeat("long ", 1000)+`"}`)
			}, Config{URLs: []string{to}})
			err := s.Deliver(t.Context(), failed())
			outcome, after := relay.Classify(err)
			if err == nil || outcome != c.want || after != c.after {
				t.Errorf("%d of %.12s led to %v (%s after %s)", c.status, to, err, outcome, after)
				continue
			}
			if strings.Contains(err.Error(), hidden) || len(err.Error()) > 400 {
				t.Errorf("%v shows a secret, or all that was answered", err)
			}
			if len(d.asked) != 1 {
				t.Errorf("%d of %.12s was asked %d times", c.status, to, len(d.asked))
			}
		}
	}
}

// What a service has answered counts, though the time ends as it is read.
func TestAnswerAtTheLastMoment(t *testing.T) {
	over, cancel := context.WithTimeout(t.Context(), 0)
	defer cancel()
	to := destination{name: "urls.0", url: &url.URL{Scheme: "ntfy", Host: "ntfy.sh"}}
	for status, want := range map[int]relay.Outcome{http.StatusBadRequest: relay.OutcomePermanent, http.StatusTooManyRequests: relay.OutcomeRetry} {
		err := to.classify(&attempt{ctx: over, requested: true, status: status, wait: time.Minute}, errors.New("no"))
		outcome, after := relay.Classify(err)
		if outcome != want || (after == time.Minute) != (want == relay.OutcomeRetry) || !strings.Contains(err.Error(), fmt.Sprint("answered ", status)) {
			t.Errorf("%s after %s: %v", outcome, after, err)
		}
	}
}

// TestSeveral wants a repeat to reach only those that have not got it.
func TestSeveral(t *testing.T) {
	down := true
	s, d := behind(t, func(host string, w http.ResponseWriter, r *http.Request) {
		if down && strings.Contains(host, "gotify") {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		good(host, w, r)
	}, Config{
		URLs:     []string{"ntfy://ntfy.sh/" + hidden, "gotify://gotify.example.com/AzyoeNS.D4iJLVa"},
		URLFiles: []string{file(t, "telegram://12345:"+hidden+"@telegram?chats=667\n")},
	})
	if err := s.Deliver(t.Context(), failed()); err == nil || !strings.Contains(err.Error(), "gotify (urls.1) answered 502") {
		t.Fatalf("got %v", err)
	}
	if len(d.asked) != 3 {
		t.Fatalf("asked %d times", len(d.asked))
	}
	down = false
	if err := s.Deliver(t.Context(), failed()); err != nil || len(d.asked) != 4 {
		t.Errorf("the repeat: %v, asked %d times", err, len(d.asked))
	}
}

func TestHangingAndGuarded(t *testing.T) {
	release := make(chan struct{})
	s, _ := behind(t, func(_ string, _ http.ResponseWriter, r *http.Request) {
		select {
		case <-release:
		case <-r.Context().Done():
		}
	}, Config{URLs: []string{"ntfy://ntfy.sh/" + hidden, "discord://" + hidden + "@123456789012345678", "telegram://12345:" + hidden + "@telegram?chats=667"}})
	defer close(release)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if err := s.Deliver(ctx, failed()); err == nil || strings.Count(err.Error(), "did not answer in time") != 3 {
		t.Errorf("three that hang led to %v", err)
	}

	for _, to := range []string{"ntfy://127.0.0.1:1/topic?scheme=http", "gotify://127.0.0.1:1/AzyoeNS.D4iJLVa", "mattermost://127.0.0.1:1/token", "matrix://:t@127.0.0.1:1?rooms=!a:b", "rocketchat://127.0.0.1:1/tokenA1234/tokenB1234"} {
		own := New(&Config{URLs: []string{to}})
		use(t, own)
		if err := own.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := own.Deliver(t.Context(), failed()); err == nil || !strings.Contains(err.Error(), "127.0.0.1 is a loopback address and refused; add it to allow_cidrs") {
			t.Errorf("%.10s: an address that is not public led to %v", to, err)
		}
	}
}

// TestBatch wants one message of a batch, which says how many there were.
func TestBatch(t *testing.T) {
	s, d := behind(t, good, Config{URLs: []string{"ntfy://ntfy.sh/topic"}})
	batch := failed()
	batch.Batch = true
	batch.Notifications = append(batch.Notifications, failed().Notifications...)
	if err := s.Deliver(t.Context(), batch); err != nil || len(d.asked) != 1 || !strings.Contains(d.asked[0].title, "2 notifications") {
		t.Errorf("got %v and %+v", err, d.asked)
	}
}

func TestMistakes(t *testing.T) {
	for text, want := range map[string]string{
		"":                        "is not a URL in shoutrrr's form",
		hidden:                    "is not a URL in shoutrrr's form",
		"smtp://u@h/" + hidden:    "use a sink of type email",
		"generic://h/" + hidden:   "use a sink of type webhook",
		"slack://" + hidden + "@": "use a sink of type slack",
		"mqtt://h/" + hidden:      "use hubrelay-brokers",
		"telegramm://" + hidden:   "did you mean telegram://?",
		"fax://" + hidden:         "choose one of discord, googlechat, gotify,",
	} {
		err := (&Config{URLs: []string{text}}).Validate()
		if err == nil || !strings.Contains(err.Error(), "urls.0 "+want) && !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), hidden) {
			t.Errorf("got %v, not %s", err, want)
		}
	}
	if err := (&Config{}).Validate(); err == nil {
		t.Error("no destination is good")
	}
	if err := (&Config{URLs: []string{"ntfy://h/t"}, AllowCIDRs: []string{"x"}}).Validate(); err == nil {
		t.Error("a range that is none is good")
	}
	for _, c := range []Config{
		{URLs: []string{"discord://" + hidden + "@"}},
		{URLs: []string{"pushover://:" + hidden + "@"}},
		{URLFiles: []string{"/none"}},
		{URLFiles: []string{file(t, "smtp://"+hidden)}},
	} {
		s := New(&c)
		use(t, s)
		if err := s.Start(t.Context()); err == nil || strings.Contains(err.Error(), hidden) {
			t.Errorf("got %v", err)
		} else {
			t.Log(err)
		}
	}
	// Matrix logs in when it is opened, which no start waits for.
	s := New(&Config{URLs: []string{"matrix://user:" + hidden + "@matrix.example.com?rooms=!room:matrix.example.com"}})
	use(t, s)
	if err := s.Start(t.Context()); err != nil {
		t.Errorf("a login at the start: %v", err)
	}
}

func file(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "url")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestNothingIsAskedOutsideOfAnAttempt(t *testing.T) {
	s, _ := behind(t, good, Config{URLs: []string{"ntfy://ntfy.sh/topic"}})
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://example.com/", nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.transport.RoundTrip(r); !errors.Is(err, errNoAttempt) {
		t.Errorf("got %v", err)
	}
}
