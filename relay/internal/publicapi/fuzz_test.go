package publicapi

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/auth"
)

// noTokens rejects every token.
type noTokens struct{}

func (noTokens) Issue(context.Context, auth.Grant, func(int64) error) (string, error) {
	return "t", nil
}

func (noTokens) Get(context.Context, string) (auth.Grant, error) {
	return auth.Grant{}, auth.ErrTokenUnknown
}

func (noTokens) Consume(context.Context, string) (auth.Grant, error) {
	return auth.Grant{}, auth.ErrTokenUnknown
}

func (noTokens) KeepAlive(context.Context, string, func()) (*auth.Hold, error) {
	return nil, auth.ErrTokenUnknown
}

// FuzzRequest checks that every request gets a documented status, and that every error is an envelope.
func FuzzRequest(f *testing.F) {
	f.Add(
		"GET",
		pathNotifications,
		"token=a%20b&topics=*.error,!x",
		"Bearer ops",
		"h1",
		"websocket",
		"https://a.test",
		"13",
	)
	f.Add("POST", pathNotifications, "", "bearer  ops ", "\xff", "h2c", "null", "")
	f.Add("OPTIONS", "*", "%", "Basic x", "", "", "://", "8")
	f.Add("HEAD", "/openapi.yaml", ";", "", "h", "a, WebSocket", "http://[::1", "13, 8")
	catalog, err := relay.NewCatalog(nil)
	if err != nil {
		f.Fatal(err)
	}
	a, err := New(Options{
		Authenticator: auth.NewAuthenticator(auth.AuthenticatorOptions{Keys: keyring(f)}), Tokens: noTokens{},
		Publisher: discard{}, Catalog: catalog, AllowedOrigins: []string{"https://a.test"},
	})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, method, path, query, authorization, hub, upgrade, origin, version string) {
		r := &http.Request{
			Method: method, URL: &url.URL{Path: path, RawQuery: query}, Host: "a.test",
			Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
			Body: http.NoBody, Header: http.Header{
				"Authorization": {authorization}, "X-Hub-Id": {hub}, "Upgrade": {upgrade}, "Connection": {"upgrade"},
				"Origin": {
					origin,
				}, "Sec-Websocket-Version": {version}, "Sec-Websocket-Key": {"dGhlIHNhbXBsZSBub25jZQ=="},
			},
		}
		w := httptest.NewRecorder()
		a.ServeHTTP(w, r)
		if w.Code < 400 {
			return
		}
		var e struct{ Error struct{ Status int } }
		if err := json.Unmarshal(w.Body.Bytes(), &e); err != nil || e.Error.Status != w.Code || w.Code == 500 {
			t.Errorf("%d %q: %v", w.Code, w.Body, err)
		}
	})
}
