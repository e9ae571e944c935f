package publicapi

import (
	"strings"
	"testing"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/clients"
)

var accept = []string{"Accept", "text/event-stream"}

func TestEventStream(t *testing.T) {
	t.Parallel()
	f := newFixture(t, func(o *Options) { o.AllowedOrigins = []string{"https://app.example.com"} }, nil)
	token, account := f.token("X-Hub-Id", "h1"), f.token()
	for _, tt := range []struct {
		name, query, hub, after string
		cursor                  bool
		headers                 []string
	}{
		{"a token", "?token=" + token, "h1", "", false, nil},
		{"the same again", "?token=" + token + "&topics=job.*&cursor=true", "h1", "", true, nil},
		{"in the header", "", "h1", "", false, []string{"X-Service-Token", token}},
		{"of the account", "?token=" + account, "", "", false, nil},
		{"the key itself", "", "h1", "", false, []string{"Authorization", "Bearer one", "X-Hub-Id", "h1"}},
		{"the key's account", "", "", "", false, []string{"Authorization", "Bearer ops"}},
		{"both", "?token=" + token, "h1", "", false, []string{"Authorization", "Bearer one"}},
		{"after", "?token=" + token + "&after=EQa", "h1", "EQa", false, nil},
		{"Last-Event-ID", "?token=" + token, "h1", "EQb", false, []string{"Last-Event-ID", "EQb"}},
		{
			"Last-Event-ID is newer", "?token=" + token + "&after=EQa&cursor=false", "h1", "EQb", false,
			[]string{"Last-Event-ID", "EQb"},
		},
		{"a page", "?token=" + token, "h1", "", false, []string{"Origin", "https://app.example.com"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a := f.do("GET", pathNotifications+tt.query, "", append(tt.headers, accept...)...)
			if a.status != 200 || a.header.Get("Content-Type") != "text/event-stream" {
				t.Fatalf("%d %s", a.status, a.body)
			}
			s := f.streams.got[len(f.streams.got)-1]
			if s.Hub != tt.hub || s.After != tt.after || s.Cursor != tt.cursor ||
				checkKey(&s) != (clients.Authorization{}) {
				t.Errorf("%+v", s)
			}
			if got := a.header.Get("Access-Control-Allow-Origin"); (got != "") != (tt.name == "a page") {
				t.Errorf("shared with %q", got)
			}
		})
	}
	request := handshake(pathNotifications+"?token="+token, "Accept: text/event-stream", "Last-Event-ID: x")
	if a := f.raw(request); a.status != 101 {
		t.Errorf("a websocket all the same: %d %s", a.status, a.body)
	}
	if s := f.streams.got[len(f.streams.got)-1]; s.After != "" {
		t.Errorf("a websocket resumes by Last-Event-ID %q", s.After)
	}
	if a := f.do("GET", pathNotifications+"?token="+token, "", accept...); a.status != 401 {
		t.Errorf("a token that opened a websocket: %d %s", a.status, a.body)
	}
}

func TestEventStreamOverHTTP2(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil, nil)
	if a := f.overHTTP2(pathNotifications+"?token="+f.token(), accept...); a.status != 200 || a.proto != "HTTP/2.0" {
		t.Errorf("%d %s %s", a.status, a.proto, a.body)
	}
}

func TestEventStreamRefusals(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil, nil)
	token := "?token=" + f.token("X-Hub-Id", "h1")
	for _, tt := range []struct {
		name, query string
		headers     []string
		code        relay.Code
	}{
		{"nothing", "", nil, relay.CodeAuthInvalid},
		{"an empty token and a key", "?token=", []string{"Authorization", "Bearer ops"}, relay.CodeAuthInvalid},
		{"an unknown token", "?token=x", nil, relay.CodeAuthInvalid},
		{"two tokens", token, []string{"X-Service-Token", "x"}, relay.CodeAuthInvalid},
		{"a wrong key", "", []string{"Authorization", "Bearer x"}, relay.CodeAuthInvalid},
		{"a token and a wrong key", token, []string{"Authorization", "Bearer x"}, relay.CodeAuthInvalid},
		{"an expired key", "", []string{"Authorization", "Bearer old"}, relay.CodeAuthExpired},
		{"a key of another hub", "", []string{"Authorization", "Bearer one", "X-Hub-Id", "h2"}, relay.CodeWrongHub},
		{"a token of another hub", token, []string{"X-Hub-Id", "h2"}, relay.CodeWrongHub},
		{"a page of another host", token, []string{"Origin", "https://evil.test"}, relay.CodePermissions},
		{"a bad pattern", token + "&topics=container.craeted", nil, relay.CodeInvalidArgument},
		{"cursors, perhaps", token + "&cursor=maybe", nil, relay.CodeInvalidArgument},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a := f.do("GET", pathNotifications+tt.query, "", append(tt.headers, accept...)...)
			if code, _, _ := a.envelope(t); code != string(tt.code) {
				t.Errorf("%s, want %s: %s", code, tt.code, a.body)
			}
		})
	}
	if len(f.streams.got) != 0 {
		t.Errorf("%d streams were opened", len(f.streams.got))
	}
	if a := f.do("GET", pathNotifications+token, ""); a.status != 426 ||
		!strings.Contains(string(a.body), "text/event-stream") {
		t.Errorf("neither upgrade nor event stream: %d %s", a.status, a.body)
	}
}
