package notify

import (
	"context"
	"encoding/json"
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
	"sync/atomic"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay"
)

// fakeServices is a server that receives the requests to all hosts. Its responses follow the documentation of the
// services.
type fakeServices struct {
	mu       sync.Mutex
	requests []request
	respond  responder
}

// responder sends the response of the service at host.
type responder func(host string, w http.ResponseWriter, r *http.Request)

type request struct{ method, url, title, body string }

// startSink starts a sink that sends all requests to a fakeServices. Tests that use it are not parallel, because they
// set the default transport of the process.
func startSink(t *testing.T, respond responder, config Config) (*Sink, *fakeServices) {
	t.Helper()
	d := &fakeServices{respond: respond}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		d.mu.Lock()
		d.requests = append(d.requests, request{r.Method, r.Header.Get("X-Url"), r.Header.Get("Title"), string(body)})
		d.mu.Unlock()
		r.Header.Set("X-Body", strings.ReplaceAll(string(body), "\n", " "))
		d.respond(r.Header.Get("X-Host"), w, r)
	}))
	t.Cleanup(server.Close)
	s := New(&config)
	s.transport.next = redirectTransport(server.URL)
	useTransport(t, s)
	if err := config.Validate(); err != nil {
		t.Fatal(err)
	}
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	return s, d
}

// useTransport sets the default transport of the process until the test ends.
func useTransport(t *testing.T, s *Sink) {
	t.Helper()
	before := http.DefaultTransport
	http.DefaultTransport = s.Transport()
	t.Cleanup(func() { http.DefaultTransport = before })
}

// redirectTransport sends all requests to one server, with the original URL in headers.
type redirectTransport string

func (to redirectTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	target, err := url.Parse(string(to))
	if err != nil {
		return nil, err
	}
	r = r.Clone(r.Context())
	r.Header.Set("X-Url", r.URL.String())
	r.Header.Set("X-Host", r.URL.Host)
	r.URL.Scheme, r.URL.Host = target.Scheme, target.Host
	return plainTransport.RoundTrip(r)
}

var plainTransport = &http.Transport{DisableKeepAlives: true}

// respondOK sends the success response of each service.
func respondOK(host string, w http.ResponseWriter, r *http.Request) {
	switch {
	case strings.Contains(host, "discord"):
		w.WriteHeader(http.StatusNoContent)
	case strings.Contains(host, "telegram"):
		_, _ = io.WriteString(w, `{"ok":true,"result":{"message_id":1,"chat":{"id":667,"type":"private"}}}`)
	case strings.Contains(host, "matrix"):
		_, _ = io.WriteString(w, `{"event_id":"$1","room_id":"!room:matrix.example.com",`+
			`"access_token":"at-secret-123","flows":[{"type":"m.login.password"}]}`)
	case strings.Contains(host, "pushover"):
		_, _ = io.WriteString(w, `{"status":1,"request":"1"}`)
	case strings.Contains(host, "pushbullet"):
		// The response repeats the push.
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

const secret = "s3cret-not-to-be-seen"

func newDelivery() relay.Delivery {
	data := `{"topic":"container.error","object":{"id":"o-1","state":"failed","error":"call @everyone"},` +
		`"context":{"hub_id":"hub-1","containers":["c-1"]}}`
	return relay.Delivery{ID: "6740a1b20000000000000001", Attempt: 1, Notifications: []relay.Notification{{
		ID: "6740a1b20000000000000001", Topic: "container.error", Hub: "hub-1", Data: []byte(data),
	}}}
}

// TestSink_DeliverToEachService expects that the requests of all services use the transport and contain the text.
func TestSink_DeliverToEachService(t *testing.T) {
	for scheme, c := range map[string]struct{ url, want string }{
		"discord": {
			"discord://" + secret + "@123456789012345678",
			"https://discord.com/api/webhooks/123456789012345678/" + secret,
		},
		"googlechat": {
			"googlechat://chat.googleapis.com/v1/spaces/FOO/messages?key=bar&token=" + secret,
			"https://chat.googleapis.com/v1/spaces/FOO/messages",
		},
		"gotify": {"gotify://gotify.example.com/AzyoeNS.D4iJLVa", "https://gotify.example.com/message"},
		"matrix": {
			"matrix://:" + secret + "@matrix.example.com?rooms=!room:matrix.example.com",
			"https://matrix.example.com/_matrix/client/",
		},
		"mattermost": {
			"mattermost://mattermost.example.com/" + secret,
			"https://mattermost.example.com/hooks/" + secret,
		},
		"ntfy":       {"ntfy://ntfy.sh/" + secret, "https://ntfy.sh/" + secret},
		"pushbullet": {"pushbullet://o.abcdefghijklmnopqrstuvwxyz012345", "https://api.pushbullet.com/v2/pushes"},
		"pushover":   {"pushover://:" + secret + "@userkey12345", "https://api.pushover.net/1/messages.json"},
		"rocketchat": {
			"rocketchat://rocket.example.com/tokenA1234/" + secret,
			"https://rocket.example.com/hooks/tokenA1234/" + secret,
		},
		"teams": {
			"teams://11111111-4444-4444-8444-cccccccccccc@22222222-4444-4444-8444-cccccccccccc/" +
				"33333333012222222222333333333344/44444444-4444-4444-8444-cccccccccccc/" +
				"V2ESyij_gAljSoUQHvZoZYzlpAoAXExyOl26dlf1xHEx05?host=contoso.webhook.office.com",
			"https://contoso.webhook.office.com/webhookb2/11111111-4444-4444-8444-cccccccccccc@" +
				"22222222-4444-4444-8444-cccccccccccc/IncomingWebhook/",
		},
		"telegram": {
			"telegram://12345:" + secret + "@telegram?chats=667",
			"https://api.telegram.org/bot12345:" + secret + "/sendMessage",
		},
		"zulip": {
			"zulip://bot%40example.com:" + secret + "@example.zulipchat.com?stream=foo&topic=bar",
			"https://bot%40example.com:" + secret + "@example.zulipchat.com/api/v1/messages",
		},
	} {
		t.Run(scheme, func(t *testing.T) {
			s, d := startSink(t, respondOK, Config{URLs: []string{c.url}})
			if err := s.Deliver(t.Context(), newDelivery()); err != nil {
				t.Fatal(err)
			}
			if len(d.requests) == 0 {
				t.Fatal("got no request")
			}
			last := d.requests[len(d.requests)-1]
			if !strings.HasPrefix(last.url, c.want) {
				t.Errorf("got request to %s, want %s", last.url, c.want)
			}
			all, err := url.QueryUnescape(strings.ReplaceAll(last.title+" "+last.body, "%", "%25"))
			if err != nil {
				t.Fatal(err)
			}
			form, err := url.ParseQuery(last.body)
			if err == nil && strings.Contains(last.body, "%20") || strings.Contains(last.body, "+") {
				all += " " + form.Get("message") + form.Get("title") + form.Get("content")
			}
			for _, want := range []string{"[PROBLEM] Something went wrong", "container.error", "c-1"} {
				if !strings.Contains(all, want) {
					t.Errorf("got\n%s\nwant %q in it", all, want)
				}
			}
			if knownServices()[scheme].markup && strings.Contains(last.body, "@everyone") {
				t.Errorf("the text mentions everyone:\n%s", last.body)
			}
			expectExplained(t, s, d.requests)
		})
	}
	if n := len(knownServices()); n != 12 {
		t.Errorf("got %d services, want the 12 of this test", n)
	}
}

// expectExplained compares the explanation with the requests that were received. It must have no secrets.
func expectExplained(t *testing.T, s *Sink, requests []request) {
	t.Helper()
	explanation, err := s.Preview(newDelivery())
	if err != nil {
		t.Fatal(err)
	}
	if len(explanation.Followups)+1 != len(requests) {
		t.Errorf("got %d explained requests, want %d", len(explanation.Followups)+1, len(requests))
	}
	destinations, err := s.config.parseDestinations()
	if err != nil {
		t.Fatal(err)
	}
	for i, one := range append([]relay.Preview{explanation}, explanation.Followups...) {
		var got request
		if i < len(requests) {
			got = requests[i]
		}
		if one.Method != got.method || string(one.Payload) != destinations[0].redact(got.body) {
			t.Errorf("explained %s\n%s\nbut got %s\n%s", one.Method, one.Payload, got.method, got.body)
		}
		for _, part := range []string{secret, "AzyoeNS", "abcdefghijklmnop", "222222222333", "userkey12345"} {
			if strings.Contains(fmt.Sprintf("%s", one), part) {
				t.Errorf("%s contains a secret", one)
			}
		}
	}
}

// TestSink_Explain expects all destinations in order, without Start.
func TestSink_Explain(t *testing.T) {
	s := New(&Config{
		URLs:     []string{"ntfy://ntfy.sh/" + secret, "gotify://gotify.example.com/AzyoeNS.D4iJLVa"},
		URLFiles: []string{writeFile(t, "telegram://12345:"+secret+"@telegram?chats=667,668\n")},
	})
	useTransport(t, s)
	explanation, err := s.Preview(newDelivery())
	if err != nil || len(explanation.Followups) != 3 {
		t.Fatalf("got %+v (%v)", explanation, err)
	}
	var names []string
	for _, one := range append([]relay.Preview{explanation}, explanation.Followups...) {
		names = append(names, one.Headers[0].Value)
	}
	want := "ntfy (urls.0) gotify (urls.1) telegram (url_files.0) telegram (url_files.0)"
	if got := strings.Join(names, " "); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if !strings.Contains(string(explanation.Payload), "c-1") || explanation.Target != "https://ntfy.sh/(redacted)" ||
		!strings.Contains(fmt.Sprint(explanation.Headers), "Something went wrong") {
		t.Errorf("got %s", explanation)
	}
	if _, err := New(&Config{URLFiles: []string{"/none"}}).Preview(newDelivery()); err == nil {
		t.Error("missing file: got no error")
	}
}

// TestDestination_RedactAllEncodings uses a secret that URLs, forms and JSON encode differently.
func TestDestination_RedactAllEncodings(t *testing.T) {
	s := New(&Config{URLs: []string{"matrix://bot:pa%26ss%22word@matrix.example.com?rooms=!room:matrix.example.com"}})
	useTransport(t, s)
	explanation, err := s.Preview(newDelivery())
	if err != nil {
		t.Fatal(err)
	}
	if text := fmt.Sprintf("%s", explanation); !strings.Contains(text, `"password":"(redacted)"`) {
		t.Errorf("got %s", text)
	}
	list, err := s.config.parseDestinations()
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{`pa&ss"word`, `pa%26ss%22word`, `pa&ss%22word`, `pa&ss\"word`, `pa\u0026ss\"word`} {
		if got := list[0].redact("<" + text + ">"); got != "<(redacted)>" {
			t.Errorf("redact <%s>: got %s, want <(redacted)>", text, got)
		}
	}
}

// A secret at the end of the part of a response that errors contain is not cut into a part that nothing recognizes.
func TestDestination_RedactsBeforeTruncation(t *testing.T) {
	s := New(&Config{URLs: []string{"ntfy://user:ntfy-s3cret-password@ntfy.sh/topic"}})
	list, err := s.config.parseDestinations()
	if err != nil {
		t.Fatal(err)
	}
	a := &attempt{ctx: t.Context(), status: 500, body: []byte(strings.Repeat("x", 190) + "ntfy-s3cret-password")}
	if err := list[0].classifyAttempt(a, nil); err == nil || strings.Contains(err.Error(), "ntfy-s") {
		t.Errorf("got error %v", err)
	}
}

func TestSink_ResponseStatus(t *testing.T) {
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
			"ntfy://ntfy.sh/" + secret, "telegram://12345:" + secret + "@telegram?chats=667",
			"discord://" + secret + "@123456789012345678",
			"pushover://:" + secret + "@userkey12345",
		} {
			s, d := startSink(t, func(_ string, w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Retry-After", "7")
				w.Header().Set("Location", "https://elsewhere.example.com/")
				w.WriteHeader(c.status)
				description := "it is " + secret + ", and " + strings.Repeat("long ", 1000)
				_, _ = io.WriteString(w, `{"ok":false,"description":"`+description+`"}`)
			}, Config{URLs: []string{to}})
			err := s.Deliver(t.Context(), newDelivery())
			outcome, after := relay.Classify(err)
			if err == nil || outcome != c.want || after != c.after {
				t.Errorf("%d of %.12s: got %v (%s after %s)", c.status, to, err, outcome, after)
				continue
			}
			if strings.Contains(err.Error(), secret) || len(err.Error()) > 400 {
				t.Errorf("%v contains a secret, or the complete response", err)
			}
			if len(d.requests) != 1 {
				t.Errorf("%d of %.12s: got %d requests, want 1", c.status, to, len(d.requests))
			}
		}
	}
}

// TestDestination_ClassifyResponseAtDeadline expects that a response counts even if the time ends while it is read.
func TestDestination_ClassifyResponseAtDeadline(t *testing.T) {
	expired, cancel := context.WithTimeout(t.Context(), 0)
	defer cancel()
	to := destination{name: "urls.0", url: &url.URL{Scheme: "ntfy", Host: "ntfy.sh"}}
	for status, want := range map[int]relay.Outcome{
		http.StatusBadRequest: relay.OutcomePermanent, http.StatusTooManyRequests: relay.OutcomeRetry,
	} {
		err := to.classifyAttempt(&attempt{ctx: expired, requested: true, status: status, wait: time.Minute},
			errors.New("no"))
		outcome, after := relay.Classify(err)
		if outcome != want || (after == time.Minute) != (want == relay.OutcomeRetry) ||
			!strings.Contains(err.Error(), fmt.Sprint("status ", status)) {
			t.Errorf("%d: got %s after %s: %v", status, outcome, after, err)
		}
	}
}

// TestSink_RetrySkipsDelivered expects that a retry sends no request to a destination that has the message.
func TestSink_RetrySkipsDelivered(t *testing.T) {
	down := true
	s, d := startSink(t, func(host string, w http.ResponseWriter, r *http.Request) {
		if down && strings.Contains(host, "gotify") {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		respondOK(host, w, r)
	}, Config{
		URLs:     []string{"ntfy://ntfy.sh/" + secret, "gotify://gotify.example.com/AzyoeNS.D4iJLVa"},
		URLFiles: []string{writeFile(t, "telegram://12345:"+secret+"@telegram?chats=667\n")},
	})
	err := s.Deliver(t.Context(), newDelivery())
	if err == nil || !strings.Contains(err.Error(), "gotify (urls.1) status 502") {
		t.Fatalf("got %v", err)
	}
	if len(d.requests) != 3 {
		t.Fatalf("got %d requests, want 3", len(d.requests))
	}
	down = false
	if err := s.Deliver(t.Context(), newDelivery()); err != nil || len(d.requests) != 4 {
		t.Errorf("retry: got %v and %d requests, want 4", err, len(d.requests))
	}
}

func TestSink_HangingAndForbiddenAddresses(t *testing.T) {
	release := make(chan struct{})
	s, _ := startSink(t, func(_ string, _ http.ResponseWriter, r *http.Request) {
		select {
		case <-release:
		case <-r.Context().Done():
		}
	}, Config{URLs: []string{
		"ntfy://ntfy.sh/" + secret, "discord://" + secret + "@123456789012345678",
		"telegram://12345:" + secret + "@telegram?chats=667",
	}})
	defer close(release)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if err := s.Deliver(ctx, newDelivery()); err == nil || strings.Count(err.Error(), "did not respond in time") != 3 {
		t.Errorf("three hanging services: got %v", err)
	}

	for _, to := range []string{
		"ntfy://127.0.0.1:1/topic?scheme=http", "gotify://127.0.0.1:1/AzyoeNS.D4iJLVa",
		"mattermost://127.0.0.1:1/token",
		"matrix://:t@127.0.0.1:1?rooms=!a:b", "rocketchat://127.0.0.1:1/tokenA1234/tokenB1234",
	} {
		guarded := New(&Config{URLs: []string{to}})
		useTransport(t, guarded)
		if err := guarded.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		want := "127.0.0.1 is a loopback address, which is rejected by default; to allow it, add it to allow_cidrs"
		if err := guarded.Deliver(t.Context(), newDelivery()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.10s: got %v, want %s", to, err, want)
		}
	}
}

// A response 101 ends the attempt at this destination, and the next one gets the message.
func TestSink_SwitchedProtocols(t *testing.T) {
	var received atomic.Int32
	hostile := httptest.NewServer(http.HandlerFunc(testkit.ServeUpgrade))
	defer hostile.Close()
	good := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		received.Add(1)
		respondOK("", w, r)
	}))
	defer good.Close()
	urlOf := func(s *httptest.Server) string { return "ntfy://" + s.Listener.Addr().String() + "/topic?scheme=http" }
	s := New(&Config{URLs: []string{urlOf(hostile), urlOf(good)}, AllowCIDRs: []string{"127.0.0.0/8"}})
	useTransport(t, s)
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	err := s.Deliver(t.Context(), newDelivery())
	if err == nil || !strings.Contains(err.Error(), "switched to another protocol") || received.Load() != 1 {
		t.Errorf("got %v, and %d messages at the other destination, want 1", err, received.Load())
	}
}

// TestSink_BatchIsOneMessage expects one message with the number of notifications in its title.
func TestSink_BatchIsOneMessage(t *testing.T) {
	s, d := startSink(t, respondOK, Config{URLs: []string{"ntfy://ntfy.sh/topic"}})
	batch := newDelivery()
	batch.Batch = true
	batch.Notifications = append(batch.Notifications, newDelivery().Notifications...)
	err := s.Deliver(t.Context(), batch)
	if err != nil || len(d.requests) != 1 || !strings.Contains(d.requests[0].title, "2 events") {
		t.Errorf("got %v and %+v", err, d.requests)
	}
}

func TestConfig_Problems(t *testing.T) {
	for text, want := range map[string]string{
		"":                        "is not a URL of shoutrrr",
		secret:                    "is not a URL of shoutrrr",
		"smtp://u@h/" + secret:    "use a sink of type email",
		"generic://h/" + secret:   "use a sink of type webhook",
		"slack://" + secret + "@": "use a sink of type slack",
		"mqtt://h/" + secret:      "use hubrelay-brokers",
		"telegramm://" + secret:   "did you mean telegram://?",

		"telegram://12345:" + secret + "@telegram?chats=667&parseMode=HTML": "remove the parameter",
		"fax://" + secret: "choose one of discord, googlechat, gotify,",
	} {
		err := (&Config{URLs: []string{text}}).Validate()
		if err == nil || !strings.Contains(err.Error(), "urls.0 "+want) && !strings.Contains(err.Error(), want) ||
			strings.Contains(err.Error(), secret) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
	if err := (&Config{}).Validate(); err == nil {
		t.Error("no destination: got no error")
	}
	if err := (&Config{URLs: []string{"ntfy://h/t"}, AllowCIDRs: []string{"x"}}).Validate(); err == nil {
		t.Error("invalid CIDR: got no error")
	}
	for _, c := range []Config{
		{URLs: []string{"discord://" + secret + "@"}},
		{URLs: []string{"pushover://:" + secret + "@"}},
		{URLFiles: []string{"/none"}},
		{URLFiles: []string{writeFile(t, "smtp://"+secret)}},
	} {
		s := New(&c)
		useTransport(t, s)
		if err := s.Start(t.Context()); err == nil || strings.Contains(err.Error(), secret) {
			t.Errorf("got %v", err)
		} else {
			t.Log(err)
		}
	}
	// Matrix logs in while it is opened, which must not fail Start.
	s := New(&Config{URLs: []string{"matrix://user:" + secret + "@matrix.example.com?rooms=!room:matrix.example.com"}})
	useTransport(t, s)
	if err := s.Start(t.Context()); err != nil {
		t.Errorf("login during Start: got %v", err)
	}
}

func writeFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "url")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestTransport_NoRequestWithoutAttempt(t *testing.T) {
	s, _ := startSink(t, respondOK, Config{URLs: []string{"ntfy://ntfy.sh/topic"}})
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://example.com/", nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.transport.RoundTrip(r); !errors.Is(err, errNoAttempt) {
		t.Errorf("got %v", err)
	}
}

// An account cannot hide the address of a link.
func TestDisableMarkup_Links(t *testing.T) {
	t.Parallel()
	got := disableMarkup.Replace("[safe](http://evil.example) <http://evil.example|safe>")
	if strings.Contains(got, "](") || strings.Contains(got, "<h") {
		t.Errorf("got %q, want no link with another text", got)
	}
}

// Disabling markup makes a text longer, but not longer than the service allows.
func TestSink_MarkupKeepsLimit(t *testing.T) {
	s, d := startSink(t, respondOK, Config{URLs: []string{"mattermost://mattermost.example.com/" + secret}})
	delivery := newDelivery()
	data := string(delivery.Notifications[0].Data)
	delivery.Notifications[0].Data = []byte(strings.Replace(data, "@everyone", strings.Repeat("@", 7000), 1))
	if err := s.Deliver(t.Context(), delivery); err != nil {
		t.Fatal(err)
	}
	var message struct{ Text string }
	if err := json.Unmarshal([]byte(d.requests[0].body), &message); err != nil {
		t.Fatal(err)
	}
	if limit := knownServices()["mattermost"].maxBytes + len("…"); len(message.Text) > limit {
		t.Errorf("got a text of %d bytes, want at most %d", len(message.Text), limit)
	}
}
