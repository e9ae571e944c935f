package publicapi

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/hubrelay/hubrelay/relay"
)

func TestToken(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil, nil)
	a := f.do("GET", pathNotifications, "", "Authorization", "Bearer ops", "X-Hub-Id", "h1", "Host", "relay.test:81")
	body := regexp.MustCompile(`^\{"data":\{"token":"([A-Za-z0-9_-]{43})"\}\}$`).FindSubmatch(a.body)
	if a.status != 200 || body == nil {
		t.Fatalf("%d %q", a.status, a.body)
	}
	want := "<ws://relay.test:81/v1/hubs/current/notifications?token=" + string(body[1]) + `>; rel="notifications"`
	if got := a.header.Get("Link"); got != want {
		t.Errorf("Link: %s, want %s", got, want)
	}
	if got := a.header.Get("Cache-Control"); got != "no-store" {
		t.Errorf("Cache-Control: %q", got)
	}
	if a := f.do("HEAD", pathNotifications, "", "Authorization", "Bearer ops"); a.status != 200 || len(a.body) != 0 ||
		a.header.Get("Link") != "" {
		t.Errorf("HEAD: %d %q %v", a.status, a.body, a.header)
	}
	// curl --http2 offers h2c with the first request.
	if a := f.do("GET", pathNotifications, "", "Authorization", "Bearer ops", "Connection", "Upgrade, HTTP2-Settings",
		"Upgrade", "h2c"); a.status != 200 {
		t.Errorf("an offer of h2c: %d %s", a.status, a.body)
	}
}

// net/http validates the Host header, but not the host of an absolute request line.
func TestToken_LinkRejectsInvalidHost(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil, nil)
	a := f.raw(
		"GET http://a>;rel=x,<b" + pathNotifications + " HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer ops\r\n\r\n",
	)
	if a.status != 200 || a.header.Get("Link") != "" {
		t.Errorf("%d, Link: %s", a.status, a.header.Get("Link"))
	}
}

func TestToken_LinkFromPublicURL(t *testing.T) {
	t.Parallel()
	for public, want := range map[string]string{
		"https://relay.example.com/":     "<wss://relay.example.com/v1/hubs/current/notifications?token=",
		"http://relay.example.com:8080":  "<ws://relay.example.com:8080/v1/hubs/current/notifications?token=",
		"https://http.example.com/relay": "<wss://http.example.com/relay/v1/hubs/current/notifications?token=",
	} {
		f := newFixture(t, func(o *Options) { o.PublicURL = public }, nil)
		a := f.do("GET", pathNotifications, "", "Authorization", "Bearer ops")
		if got := a.header.Get("Link"); !strings.HasPrefix(got, want) {
			t.Errorf("%s: Link: %s, want %s", public, got, want)
		}
	}
	for _, bad := range []string{"relay", "ftp://a", "https://", "https://a?b=c", "https://u:p@a", "://"} {
		if _, err := New(Options{PublicURL: bad}); err == nil || strings.Contains(err.Error(), "u:p") {
			t.Errorf("public_url %q: %v", bad, err)
		}
	}
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	f := newFixture(t, func(o *Options) { o.MaxBody = 1000 }, nil)
	const n, j = pathNotifications, "application/json"
	ops := []string{"Authorization", "Bearer ops"}
	with := func(h ...string) []string { return append(ops[:2:2], h...) }
	for _, tt := range []struct {
		name, method, path, body string
		headers                  []string
		code                     relay.Code
	}{
		{"no key", "GET", n, "", nil, relay.CodeAuthInvalid},
		{"wrong key", "GET", n, "", []string{"Authorization", "Bearer x"}, relay.CodeAuthInvalid},
		{"two keys", "GET", n, "", with("Authorization", "Bearer one"), relay.CodeAuthInvalid},
		{"expired key", "GET", n, "", []string{"Authorization", "Bearer old"}, relay.CodeAuthExpired},
		{"hub not opened", "GET", n, "", []string{"Authorization", "Bearer one", "X-Hub-Id", "h2"}, relay.CodeWrongHub},
		{"empty hub", "GET", n, "", with("X-Hub-Id", ""), relay.CodeMissingArgument},
		{"two hubs", "GET", n, "", with("X-Hub-Id", "a", "X-Hub-Id", "b"), relay.CodeInvalidArgument},
		{"long hub", "GET", n, "", with("X-Hub-Id", strings.Repeat("x", 257)), relay.CodeInvalidArgument},
		{"bad query", "GET", n + "?token=%zz", "", ops, relay.CodeInvalidSyntax},
		{"token without upgrade", "GET", n + "?token=x", "", ops, relay.CodeUpgradeRequired},
		{"service token without upgrade", "GET", n, "", with("X-Service-Token", "x"), relay.CodeUpgradeRequired},

		{"publish without key", "POST", n, "{}", nil, relay.CodeAuthInvalid},
		{
			"publish without capability", "POST", n, "{}",
			[]string{"Authorization", "Bearer other", "X-Hub-Id", "h"},
			relay.CodePermissions,
		},
		{"publish without hub", "POST", n, "{}", ops, relay.CodeMissingArgument},
		{
			"publish to a closed hub", "POST", n, "{}",
			[]string{"Authorization", "Bearer one", "X-Hub-Id", "h2"},
			relay.CodeWrongHub,
		},
		{"body too large", "POST", n, strings.Repeat("x", 1001), with("X-Hub-Id", "h"), relay.CodeTooLarge},
		{
			"compressed", "POST", n, "{}", with("X-Hub-Id", "h", "Content-Type", j, "Content-Encoding", "gzip"),
			relay.CodeInvalidContentType,
		},
		{"empty repeat key", "POST", n, "{}", with("X-Hub-Id", "h", "Idempotency-Key", ""), relay.CodeInvalidArgument},
		{
			"long repeat key", "POST", n, "{}", with("X-Hub-Id", "h", "Idempotency-Key", strings.Repeat("k", 256)),
			relay.CodeInvalidArgument,
		},

		{"no path", "GET", "/", "", nil, relay.CodeNoURI},
		{"another path", "POST", "/v1/hubs/current", "x", nil, relay.CodeNoURI},
		{"trailing slash", "GET", n + "/", "", nil, relay.CodeNoURI},
		{"unclean path", "GET", "/v1//hubs/./current/../current/notifications", "", nil, relay.CodeNoURI},
		{"escaped path", "GET", "/v1/hubs/current%2fnotifications", "", nil, relay.CodeNoURI},
		{"admin path", "GET", "/metrics", "", nil, relay.CodeNoURI},
		{"profile", "GET", "/debug/pprof/", "", nil, relay.CodeNoURI},
		{"odd path", "GET", "/%00%ff%22", "", nil, relay.CodeNoURI},
		{"method", "DELETE", n, "", nil, relay.CodeMethod},
		{"odd method", "FOO", n, "", nil, relay.CodeMethod},
		{"method of a document", "POST", "/openapi.yaml", "x", nil, relay.CodeMethod},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a := f.do(tt.method, tt.path, tt.body, tt.headers...)
			code, source, extra := a.envelope(t)
			if code != string(tt.code) || source != "" {
				t.Errorf("%s at %q, want %s: %s", code, source, tt.code, a.body)
			}
			checkHeaders(t, a)
			if tt.code == relay.CodePermissions && extra["capability"] != "notifications-publish" {
				t.Errorf("extra %v", extra)
			}
		})
	}
	if len(f.pub.got) != 0 || len(f.streams.got) != 0 {
		t.Errorf("something got through: %v %v", f.pub.got, f.streams.got)
	}
	if len(f.refused.codes) == 0 {
		t.Error("nothing was counted")
	}
}

func checkHeaders(t *testing.T, a response) {
	t.Helper()
	want := map[int]string{401: "Www-Authenticate", 405: "Allow", 503: "Retry-After", 426: "Upgrade"}[a.status]
	if want != "" && a.header.Get(want) == "" {
		t.Errorf("%d without the header %s: %v", a.status, want, a.header)
	}
	if a.header.Get("X-Content-Type-Options") != "nosniff" {
		t.Errorf("headers: %v", a.header)
	}
}

func TestRedisUnavailable(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil, nil)
	token := f.token()
	f.redis.Kill()
	for name, a := range map[string]response{
		"token":  f.do("GET", pathNotifications, "", "Authorization", "Bearer ops"),
		"stream": f.raw(handshake(pathNotifications + "?token=" + token)),
	} {
		if code, _, _ := a.envelope(t); code != "503.not-ready" || a.header.Get("Retry-After") == "" {
			t.Errorf("%s: %d %s", name, a.status, a.body)
		}
		if strings.Contains(string(a.body), f.redis.Socket) {
			t.Errorf("%s: the response contains internal details: %s", name, a.body)
		}
	}
}

func TestPanic_RespondsWithEnvelope(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil, nil)
	f.pub.boom = true
	a := f.do("POST", pathNotifications, "{}", "Authorization", "Bearer ops", "X-Hub-Id", "h")
	code, _, extra := a.envelope(t)
	id, _ := extra["id"].(string)
	if code != "500.unknown" || id == "" || !strings.Contains(f.log.String(), id) ||
		!strings.Contains(f.log.String(), "boom") {
		t.Errorf("%s, log %s", a.body, f.log)
	}
	if strings.Contains(string(a.body), "boom") {
		t.Error("the response contains internal details")
	}
}

func TestInternalErrorsAreNotExposed(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil, nil)
	f.pub.err = errors.New("hidden cause")
	a := f.do("POST", pathNotifications, "{}", "Authorization", "Bearer ops", "X-Hub-Id", "h")
	code, _, _ := a.envelope(t)
	if code != "500.unknown" || strings.Contains(string(a.body), "hidden") ||
		!strings.Contains(f.log.String(), "hidden cause") {
		t.Errorf("%s, log %s", a.body, f.log)
	}
	f.pub.err = fmt.Errorf("%w (hidden)", relay.NewError(relay.CodeNotReady, "later"))
	a = f.do("POST", pathNotifications, "{}", "Authorization", "Bearer ops", "X-Hub-Id", "h")
	if code, _, _ := a.envelope(t); code != "503.not-ready" || strings.Contains(string(a.body), "hidden") {
		t.Errorf("%s", a.body)
	}
}

// The error of a rejected stream fits the request of the client.
func TestUpgradeRequired_Detail(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil, nil)
	token := f.token()
	for name, tt := range map[string]struct {
		a            response
		says, saysNo string
	}{
		"plain GET": {f.do("GET", pathNotifications+"?token=x", ""), "websocket client", "this request came over"},
		"events": {
			f.do("GET", pathNotifications, "", "Accept", "text/event-stream"), "needs an API key",
			"this request came over",
		},
		"HTTP/2": {
			f.overHTTP2(pathNotifications + "?token=" + token), "this request came over HTTP/2.0",
			"Connection: Upgrade",
		},
		"HTTP/1.0": {
			f.raw(strings.Replace(handshake(pathNotifications+"?token="+token), "HTTP/1.1", "HTTP/1.0", 1)),
			"this request came over HTTP/1.0", "Connection: Upgrade",
		},
	} {
		if body := string(tt.a.body); !strings.Contains(body, tt.says) || strings.Contains(body, tt.saysNo) {
			t.Errorf("%s: %s", name, body)
		}
	}
	if a := f.do("GET", "/", ""); !strings.Contains(string(a.body), "/openapi.yaml") {
		t.Errorf("a stranger learns nothing: %s", a.body)
	}
}

// The response hides the error of Redis, so the log contains it, once and not for each request.
func TestNotReady_LogsCauseOnce(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil, nil)
	f.pub.err = fmt.Errorf(
		"%w (%w)",
		relay.NewError(relay.CodeNotReady, "later"),
		errors.New("OOM command not allowed"),
	)
	for range 3 {
		a := f.do("POST", pathNotifications, "{}", "Authorization", "Bearer ops", "X-Hub-Id", "h")
		if code, _, _ := a.envelope(t); code != "503.not-ready" {
			t.Errorf("%s", a.body)
		}
	}
	if log := f.log.String(); strings.Count(log, "OOM command") != 1 || !strings.Contains(log, "level=WARN") {
		t.Errorf("the log says %q", log)
	}
	f.pub.err = relay.NewError(relay.CodeInvalidArgument, "bad")
	f.do("POST", pathNotifications, "{}", "Authorization", "Bearer ops", "X-Hub-Id", "h")
	if log := f.log.String(); strings.Contains(log, "bad") {
		t.Errorf("a client's mistake is in the log: %q", log)
	}
}

func TestOptionsAndCORS(t *testing.T) {
	t.Parallel()
	f := newFixture(t, func(o *Options) { o.AllowedOrigins = []string{"https://App.example.com:443"} }, nil)
	a := f.do(
		"OPTIONS",
		pathNotifications,
		"",
		"Origin",
		"https://app.example.com",
		"Access-Control-Request-Method",
		"POST",
		"Access-Control-Request-Headers",
		"authorization,x-hub-id",
	)
	if a.status != 204 || a.header.Get("Access-Control-Allow-Origin") != "https://app.example.com" ||
		!strings.Contains(a.header.Get("Access-Control-Allow-Headers"), "X-Hub-Id") ||
		!strings.Contains(a.header.Get("Access-Control-Allow-Methods"), "POST") || a.header.Get("Vary") != "Origin" {
		t.Errorf("preflight: %d %v", a.status, a.header)
	}
	for _, origin := range []string{"https://evil.example.com", "http://app.example.com", "null", ""} {
		a := f.do("OPTIONS", pathNotifications, "", "Origin", origin, "Access-Control-Request-Method", "POST")
		if a.status != 204 || a.header.Get("Access-Control-Allow-Origin") != "" ||
			a.header.Get("Allow") != "GET, HEAD, POST, OPTIONS" {
			t.Errorf("preflight of %q: %d %v", origin, a.status, a.header)
		}
	}
	a = f.do("GET", pathNotifications, "", "Origin", "https://app.example.com")
	if a.status != 401 || a.header.Get("Access-Control-Allow-Origin") == "" {
		t.Errorf("an error that the page cannot read: %d %v", a.status, a.header)
	}
	f = newFixture(t, func(o *Options) { o.AllowedOrigins = []string{"*"} }, nil)
	a = f.do("GET", pathNotifications, "", "Origin", "null", "Authorization", "Bearer ops")
	if a.status != 200 || a.header.Get("Access-Control-Allow-Origin") != "*" {
		t.Errorf("any origin: %d %v", a.status, a.header)
	}
	for _, bad := range []string{
		"https://*.example.com", "app.example.com", "https://a/", "https://", "", "https://a/b",
	} {
		if _, err := New(Options{AllowedOrigins: []string{bad}}); err == nil {
			t.Errorf("allowed_origins %q was accepted", bad)
		}
	}
}

func TestEnvelope_AnyDetail(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil, nil)
	f.pub.err = relay.NewError(relay.CodeInvalidArgument, "a \"quote\" <&> \xff").
		WithPointer("/3/context/hub_id").
		WithExtra("bad", func() {})
	a := f.do("POST", pathNotifications, "{}", "Authorization", "Bearer ops", "X-Hub-Id", "h")
	if code, source, _ := a.envelope(t); code != "422.invalid-argument" || source != "/3/context/hub_id" ||
		!json.Valid(a.body) {
		t.Errorf("%s", a.body)
	}
}

func TestRevokeToken(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil, nil)
	byQuery, byHeader, consumed := f.token(), f.token(), f.token()
	if a := f.raw(handshake(pathNotifications + "?token=" + consumed)); a.status != 101 {
		t.Fatalf("%d %s", a.status, a.body)
	}
	for _, tt := range []struct {
		name, query string
		headers     []string
		status      int
	}{
		{"no token", "", nil, 401},
		{"a key is not enough", "", []string{"Authorization", "Bearer ops"}, 401},
		{"unknown token", "?token=x", nil, 401},
		{"two tokens", "?token=" + byQuery, []string{"X-Service-Token", byHeader}, 401},
		{"token of a websocket", "?token=" + consumed, nil, 401},
		{"in the query", "?token=" + byQuery, nil, 204},
		{"again", "?token=" + byQuery, nil, 401},
		{"in the header", "", []string{"X-Service-Token", byHeader}, 204},
	} {
		if a := f.do("DELETE", pathToken+tt.query, "", tt.headers...); a.status != tt.status {
			t.Errorf("%s: got status %d, want %d: %s", tt.name, a.status, tt.status, a.body)
		}
	}
	for _, token := range []string{byQuery, byHeader} {
		if a := f.raw(handshake(pathNotifications + "?token=" + token)); a.status != 401 {
			t.Errorf("a revoked token: got status %d, want 401", a.status)
		}
	}
}

// Stream parameters of the token request apply to the stream, unless the stream has its own.
func TestToken_StreamParameters(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil, nil)
	issue := func(query string) string {
		a := f.do("GET", pathNotifications+query, "", "Authorization", "Bearer ops")
		var body struct{ Data struct{ Token string } }
		if err := json.Unmarshal(a.body, &body); a.status != 200 || err != nil {
			t.Fatalf("%s: %d %s", query, a.status, a.body)
		}
		return body.Data.Token
	}
	for _, tc := range []struct {
		token, stream    string
		after            string
		cursor, metadata bool
		topic, other     string // one is selected, the other is not
	}{
		{"?topics=job.*&metadata=true&cursor=true", "", "", true, true, "job.created", "container.created"},
		{"?topics=job.*&after=now", "&topics=container.*", "now", true, false, "container.created", "job.created"},
		{"?topics=job.*&topics=!job.created&after=a", "&after=b", "b", true, false, "job.updated", "job.created"},
		{"?metadata=true", "&metadata=false&topics=job.*", "", false, false, "job.created", "container.created"},
	} {
		if a := f.raw(handshake(pathNotifications + "?token=" + issue(tc.token) + tc.stream)); a.status != 101 {
			t.Errorf("%s%s: %d %s", tc.token, tc.stream, a.status, a.body)
			continue
		}
		got := f.streams.got[len(f.streams.got)-1]
		if got.After != tc.after || got.Cursor != tc.cursor || got.Metadata != tc.metadata ||
			!got.Topics.Match(tc.topic) || got.Topics.Match(tc.other) {
			t.Errorf("%s%s opened %+v", tc.token, tc.stream, got)
		}
	}
	for query, problem := range map[string]string{
		"?topics=Job":     "topics",
		"?metadata=maybe": "metadata",
		"?topcs=job.*":    `"topcs"; did you mean topics?`,
		"?Topics=job.*":   `"Topics"; did you mean topics?`,
		"?cursors=true":   `"cursors"; did you mean cursor?`,
		"?after=" + strings.Repeat("x", maxParameters): "longer than",
	} {
		a := f.do("GET", pathNotifications+query, "", "Authorization", "Bearer ops")
		if a.status != 422 || !strings.Contains(strings.ReplaceAll(string(a.body), `\"`, `"`), problem) {
			t.Errorf("%.40s: %d %s", query, a.status, a.body)
		}
	}
	issue("?utm_source=mail") // it resembles none
}
