package publicapi

import (
	"context"
	"crypto/tls"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/hubrelay/hubrelay/internal/streamid"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/clients"
)

// handshake returns a valid upgrade request for target. lines replace or add header lines. "Name:" removes a line.
func handshake(target string, lines ...string) string {
	header := []string{
		"Host: relay.test", "Connection: keep-alive, Upgrade", "Upgrade: websocket",
		"Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
	}
	for _, line := range lines {
		name, _, _ := strings.Cut(line, ":")
		kept := header[:0]
		for _, h := range header {
			if !strings.HasPrefix(h, name+":") {
				kept = append(kept, h)
			}
		}
		header = kept
		if !strings.HasSuffix(line, ":") {
			header = append(header, line)
		}
	}
	return "GET " + target + " HTTP/1.1\r\n" + strings.Join(header, "\r\n") + "\r\n\r\n"
}

func TestUpgrade(t *testing.T) {
	t.Parallel()
	f := newFixture(t, func(o *Options) { o.AllowedOrigins = []string{"https://app.example.com"} }, nil)
	const n = pathNotifications
	for name, lines := range map[string][]string{
		"plain": nil,
		"with everything": {
			"Authorization: Bearer one", "X-Hub-Id: h1", "Origin: http://relay.test", "x-service-token: TOKEN",
		},
		"platform key":   {"Authorization: Bearer platform"},
		"allowed origin": {"Origin: https://app.example.com"},
		"same host, tls": {"Origin: https://relay.test"},
		"default port":   {"Host: relay.test:80", "Origin: http://relay.test"},
	} {
		t.Run(name, func(t *testing.T) {
			token := f.token("X-Hub-Id", "h1")
			for i := range lines {
				lines[i] = strings.ReplaceAll(lines[i], "TOKEN", token)
			}
			if a := f.raw(handshake(n+"?token="+token, lines...)); a.status != 101 {
				t.Fatalf("%d %s", a.status, a.body)
			}
			a := f.raw(handshake(n+"?token="+token, lines...))
			if code, _, _ := a.envelope(t); code != "401.auth-invalid" {
				t.Errorf("the second use: %s", a.body)
			}
		})
	}
	t.Run("header and white space", func(t *testing.T) {
		token := f.token()
		if a := f.raw(handshake(n, "x-service-token: "+token[:4]+" \t"+token[4:])); a.status != 101 {
			t.Errorf("header: %d %s", a.status, a.body)
		}
		token = f.token()
		spaced := url.QueryEscape(token[:9] + "\r\n  " + token[9:] + "\n")
		query := "?foo=1&topics=container.*,+!*.error&topics=job.created&token=" + spaced
		if a := f.raw(handshake(n + query)); a.status != 101 {
			t.Errorf("query: %d %s", a.status, a.body)
		}
		s := f.streams.got[len(f.streams.got)-1]
		if s.Account != "acme" || !slices.Equal(s.Hubs, []string{"*"}) {
			t.Errorf("it is found by the account %q and the hubs %q", s.Account, s.Hubs)
		}
		for _, tt := range []struct {
			n    relay.Notification
			want bool
		}{
			{relay.Notification{Topic: "container.created", Hub: "h9", Account: "acme"}, true},
			{relay.Notification{Topic: "job.created", Hub: "h9"}, true},
			{relay.Notification{Topic: "container.error", Hub: "h9", Account: "acme"}, false},
			{relay.Notification{Topic: "job.created", Hub: "h9", Account: "other"}, false},
			{relay.Notification{Topic: "stack.created", Hub: "h9", Account: "acme"}, false},
		} {
			if got := s.Allows(tt.n.Hub, tt.n.Account) && s.Topics.Match(tt.n.Topic); got != tt.want {
				t.Errorf("Match(%+v) = %v", tt.n, got)
			}
		}
	})
}

func TestCursorParameters(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil, nil)
	for query, want := range map[string]clients.Subscription{
		"":                       {},
		"&cursor=":               {},
		"&cursor=false":          {},
		"&cursor=false&after=":   {},
		"&cursor=true":           {Cursor: true},
		"&after=EQ-_x":           {Cursor: true, After: "EQ-_x"},
		"&after=now":             {Cursor: true, After: streamid.Now},
		"&cursor=true&after=EQx": {Cursor: true, After: "EQx"},
	} {
		if a := f.raw(handshake(pathNotifications + "?token=" + f.token() + query)); a.status != 101 {
			t.Errorf("%s: %d %s", query, a.status, a.body)
			continue
		}
		if got := f.streams.got[len(f.streams.got)-1]; got.Cursor != want.Cursor || got.After != want.After {
			t.Errorf("%s: %t %q", query, got.Cursor, got.After)
		}
	}
}

func TestMetadataParameter(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil, nil)
	for query, want := range map[string]bool{
		"": false, "&metadata=": false, "&metadata=false": false,
		"&metadata=true": true,
	} {
		if a := f.raw(handshake(pathNotifications + "?token=" + f.token() + query)); a.status != 101 {
			t.Errorf("%s: %d %s", query, a.status, a.body)
			continue
		}
		if got := f.streams.got[len(f.streams.got)-1]; got.Metadata != want {
			t.Errorf("%s: got %t, want %t", query, got.Metadata, want)
		}
	}
}

func TestUpgradeRefusals(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil, nil)
	const n = pathNotifications
	token, account := f.token("X-Hub-Id", "h1"), f.token()
	ok, okAccount := n+"?token="+token, n+"?token="+account
	for _, tt := range []struct {
		name, target string
		lines        []string
		code         relay.Code
	}{
		{"no token", n, nil, relay.CodeAuthInvalid},
		{"no token but a key", n, []string{"Authorization: Bearer ops"}, relay.CodeAuthInvalid},
		{"blank token", n + "?token=+%0A", nil, relay.CodeAuthInvalid},
		{"unknown token", n + "?token=x", nil, relay.CodeAuthInvalid},
		{"two tokens", ok, []string{"X-Service-Token: x"}, relay.CodeAuthInvalid},
		{"two tokens in the query", ok + "&token=" + account, nil, relay.CodeAuthInvalid},
		{"wrong key", ok, []string{"Authorization: Bearer x"}, relay.CodeAuthInvalid},
		{"basic", ok, []string{"Authorization: Basic b3BzOm9wcw=="}, relay.CodeAuthInvalid},
		{"expired key", ok, []string{"Authorization: Bearer old"}, relay.CodeAuthExpired},
		{"other hub", ok, []string{"X-Hub-Id: h2"}, relay.CodeWrongHub},
		{"hub for an account token", okAccount, []string{"X-Hub-Id: h1"}, relay.CodeWrongHub},
		{"other account", okAccount, []string{"Authorization: Bearer other"}, relay.CodeWrongHub},
		{"foreign origin", ok, []string{"Origin: https://evil.test"}, relay.CodePermissions},
		{"null origin", ok, []string{"Origin: null"}, relay.CodePermissions},
		{"origin of another port", ok, []string{"Origin: http://relay.test:81"}, relay.CodePermissions},
		{"topic", ok + "&topics=container.craeted", nil, relay.CodeInvalidArgument},
		{"pattern", ok + "&topics=container.*,,job.*", nil, relay.CodeInvalidArgument},
		{"many patterns", ok + "&topics=" + strings.Repeat("*,", 200) + "*", nil, relay.CodeInvalidArgument},
		{"cursors, perhaps", ok + "&cursor=1", nil, relay.CodeInvalidArgument},
		{"metadata, perhaps", ok + "&metadata=1", nil, relay.CodeInvalidArgument},
		{"two metadata parameters", ok + "&metadata=true&metadata=true", nil, relay.CodeInvalidArgument},
		{"two positions", ok + "&after=now&after=0-0", nil, relay.CodeInvalidArgument},
		{"resume without cursors", ok + "&after=x&cursor=false", nil, relay.CodeInvalidArgument},
		{"no connection", ok, []string{"Connection: keep-alive"}, relay.CodeInvalidSyntax},
		{"no version", ok, []string{"Sec-WebSocket-Version:"}, relay.CodeInvalidSyntax},
		{"no key", ok, []string{"Sec-WebSocket-Key:"}, relay.CodeInvalidSyntax},
		{"short key", ok, []string{"Sec-WebSocket-Key: YQ=="}, relay.CodeInvalidSyntax},
		{"bad key", ok, []string{"Sec-WebSocket-Key: %%%"}, relay.CodeInvalidSyntax},
		{"wrong version", ok, []string{"Sec-WebSocket-Version: 8"}, relay.CodeUpgradeRequired},
		{"no upgrade", ok, []string{"Upgrade:"}, relay.CodeUpgradeRequired},
		{"other upgrade", ok, []string{"Upgrade: h2c"}, relay.CodeUpgradeRequired},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a := f.raw(handshake(tt.target, tt.lines...))
			code, source, extra := a.envelope(t)
			if code != string(tt.code) || source != "" {
				t.Errorf("%s, want %s: %s", code, tt.code, a.body)
			}
			checkHeaders(t, a)
			if tt.name == "wrong version" && a.header.Get("Sec-WebSocket-Version") != "13" {
				t.Errorf("headers: %v", a.header)
			}
			if tt.name == "topic" && (extra["nearest"] != "container.created" || extra["parameter"] != "topics") {
				t.Errorf("extra: %v", extra)
			}
		})
	}
	if got := strings.Count(f.log.String(), "server.allowed_origins"); got != 1 {
		t.Errorf("%d lines tell of a foreign origin, want one for all:\n%s", got, f.log.String())
	}
	t.Run("HTTP/1.0", func(t *testing.T) {
		a := f.raw(strings.Replace(handshake(ok), "HTTP/1.1", "HTTP/1.0", 1))
		if code, _, _ := a.envelope(t); code != "426.upgrade-required" {
			t.Errorf("%s", a.body)
		}
	})
	t.Run("the hub refuses", func(t *testing.T) {
		f.streams.err = relay.NewError(relay.CodeNotReady, "full")
		a := f.raw(handshake(ok))
		if code, _, _ := a.envelope(t); code != "503.not-ready" {
			t.Errorf("%s", a.body)
		}
		checkHeaders(t, a)
		f.streams.err = nil
	})
	t.Run("the token was not used up by any of these", func(t *testing.T) {
		if a := f.raw(handshake(ok)); a.status != 101 {
			t.Errorf("%d %s", a.status, a.body)
		}
	})
}

func TestUpgrade_TokenIsConsumedOnce(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil, nil)
	token := f.token()
	var won atomic.Int32
	var all sync.WaitGroup
	for range 50 {
		all.Go(func() {
			if a := f.raw(handshake(pathNotifications + "?token=" + token)); a.status == 101 {
				won.Add(1)
			} else if a.status != 401 {
				t.Errorf("%d %s", a.status, a.body)
			}
		})
	}
	all.Wait()
	if won.Load() != 1 {
		t.Errorf("%d of 50 were let in", won.Load())
	}
}

// overHTTP2 sends a request over HTTP/2 without TLS (prior knowledge).
func (f *fixture) overHTTP2(path string, headers ...string) response {
	f.t.Helper()
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	transport := &http.Transport{Protocols: protocols, TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12}}
	defer transport.CloseIdleConnections()
	req, err := http.NewRequestWithContext(context.Background(), "GET", "http://"+f.addr+path, nil)
	if err != nil {
		f.t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	res, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		f.t.Fatal(err)
	}
	return readResponse(f.t, res)
}

func TestTokenOverHTTP2AndTLS(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil, nil)
	s := httptest.NewUnstartedServer(f.api)
	s.EnableHTTP2 = true
	s.StartTLS()
	defer s.Close()
	get := func(path string, headers ...string) response {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), "GET", s.URL+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		for i := 0; i < len(headers); i += 2 {
			req.Header.Set(headers[i], headers[i+1])
		}
		res, err := s.Client().Do(req)
		if err != nil {
			t.Fatal(err)
		}
		return readResponse(t, res)
	}
	a := get(pathNotifications, "Authorization", "Bearer ops")
	if a.status != 200 || a.proto != "HTTP/2.0" || !strings.HasPrefix(a.header.Get("Link"), "<wss://") {
		t.Errorf("token: %d %s %v", a.status, a.proto, a.header)
	}
	a = get(pathNotifications, "X-Service-Token", f.token())
	if code, _, _ := a.envelope(t); code != "426.upgrade-required" || a.proto != "HTTP/2.0" {
		t.Errorf("%s %s", a.proto, a.body)
	}
}

func TestTokenOverHTTP2(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil, nil)
	token := f.token()
	a := f.overHTTP2(pathNotifications + "?token=" + token)
	if code, _, _ := a.envelope(t); code != "426.upgrade-required" || a.proto != "HTTP/2.0" {
		t.Errorf("%s %s", a.proto, a.body)
	}
	if a := f.raw(handshake(pathNotifications + "?token=" + token)); a.status != 101 {
		t.Errorf("the token was used up: %d %s", a.status, a.body)
	}
}
