package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/clients"
	"github.com/hubrelay/hubrelay/relay/internal/clients/transport"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = 20 * time.Second

// server is a small relay with one key, numbered tokens, and a real hub.
type server struct {
	*httptest.Server
	hub    *clients.Server
	tokens atomic.Int64
	// override replaces the response if it returns a status.
	override func(r *http.Request) (status int, body string)
	opened   chan string // the topics parameter of each upgrade
}

func startServer(t *testing.T, override func(*http.Request) (int, string)) *server {
	t.Helper()
	s := &server{hub: clients.New(clients.Options{}), override: override, opened: make(chan string, 100)}
	s.Server = httptest.NewTLSServer(s)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = s.hub.Close(ctx)
		s.Close()
	})
	return s
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if s.override != nil {
		if status, body := s.override(r); status != 0 {
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(status)
			_, _ = io.WriteString(w, body)
			return
		}
	}
	switch {
	case r.Header.Get("Authorization") != "Bearer secret" || r.URL.Path != "/base"+notifications:
		writeError(w, relay.NewError(relay.CodeAuthInvalid, "the key is wrong"))
	case r.Method == http.MethodPost:
		body, _ := io.ReadAll(r.Body)
		_ = json.NewEncoder(w).Encode(map[string]any{"data": map[string]any{
			"ids": []string{
				r.Header.Get("Content-Type"), r.Header.Get("Idempotency-Key"), string(body), r.Header.Get("X-Hub-Id"),
			},
		}})
	case !transport.IsUpgrade(r):
		_, _ = fmt.Fprintf(w, `{"data":{"token":"t %d+&"}}`, s.tokens.Add(1))
	default:
		want := fmt.Sprintf("t %d+&", s.tokens.Load())
		if r.URL.Query().Get("token") != want || r.Header.Get("x-service-token") != want {
			writeError(w, relay.NewError(relay.CodeAuthInvalid, "the token is wrong"))
			return
		}
		hubID := r.Header.Get("X-Hub-Id")
		sub := clients.Subscription{Hub: hubID, Allows: func(h, _ string) bool { return h == hubID }}
		if problem := s.hub.ServeWebSocket(w, r, sub); problem != nil {
			writeError(w, problem)
			return
		}
		s.opened <- r.URL.Query().Get("topics")
	}
}

func writeError(w http.ResponseWriter, e *relay.Error) {
	w.WriteHeader(e.Status())
	_ = json.NewEncoder(w).Encode(map[string]any{"data": nil, "error": map[string]any{
		"status": e.Status(), "code": e.Code, "title": e.Title(),
		"detail": e.Detail, "source": e.Source, "extra": e.Extra,
	}})
}

func (s *server) client() *Client {
	return &Client{URL: s.URL + "/base/", Key: "secret", Hub: "h1", HTTP: s.Client()}
}

func notification(number int) relay.Notification {
	return relay.Notification{Hub: "h1", Account: "a1", Topic: "job.created", Data: json.RawMessage(
		fmt.Sprintf(`{"topic":"job.created","context":{"hub_id":"h1","account_id":"a1"},"n":%d}`, number))}
}

func fastRetries() ListenOptions {
	return ListenOptions{MinBackoff: time.Millisecond, MaxBackoff: 2 * time.Millisecond}
}

func TestPublish(t *testing.T) {
	t.Parallel()
	s := startServer(t, nil)
	ids, err := s.client().Publish(t.Context(), "application/x-ndjson", "once", []byte("{}"))
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"application/x-ndjson", "once", "{}", "h1"}; !slices.Equal(ids, want) {
		t.Errorf("got %q, want %q", ids, want)
	}
}

func TestPublishFollowsNoRedirect(t *testing.T) {
	t.Parallel()
	s := startServer(t, nil)
	moved := httptest.NewServer(http.RedirectHandler(s.URL+"/base"+notifications, http.StatusMovedPermanently))
	defer moved.Close()
	c := &Client{URL: moved.URL, Key: "secret", Hub: "h1"}
	_, err := c.Publish(t.Context(), "application/json", "", []byte("{}"))
	var rejected *Error
	if !errors.As(err, &rejected) || rejected.Status != http.StatusMovedPermanently {
		t.Errorf("got %v, want an error of status 301", err)
	}
}

func TestToken_ErrorResponses(t *testing.T) {
	t.Parallel()
	const envelope = `{"error":{"status":422,"code":"422.invalid-argument","title":"T","detail":"D",` +
		`"source":"/1/topic","extra":{"k":"v"}},"data":null}`
	tests := []struct {
		name   string
		status int
		body   string
		want   Error
		text   string
	}{
		{
			"envelope", 422, envelope,
			Error{
				Code: "422.invalid-argument", Title: "T", Detail: "D", Source: "/1/topic",
				Extra: map[string]any{"k": "v"},
			},
			"D (422.invalid-argument at /1/topic)",
		},
		{
			"repeats the key", 401, `{"error":{"code":"401.x","detail":"the key is secret, in base64 dTpzZWNyZXQ="}}`,
			Error{Code: "401.x", Detail: "the key is (redacted), in base64 dTp(redacted)Q="},
			"(redacted)",
		},
		{"page of a proxy", 502, "<html>", Error{}, "check the address"},
		{"no code", 404, "{}", Error{}, "404 Not Found"},
		{"invalid envelope", 400, `{"error":{"code":7}}`, Error{}, "400"},
		{"not modified", 304, "", Error{}, "304"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			s := startServer(t, func(*http.Request) (int, string) { return test.status, test.body })
			_, err := s.client().Token(t.Context())
			var got *Error
			if !errors.As(err, &got) {
				t.Fatalf("got %v, want an *Error", err)
			}
			test.want.Status, test.want.RetryAfter = test.status, time.Second
			if !reflect.DeepEqual(*got, test.want) {
				t.Errorf("got %+v, want %+v", *got, test.want)
			}
			if !strings.Contains(err.Error(), test.text) {
				t.Errorf("got error %q, want %q", err, test.text)
			}
		})
	}
}

func TestToken_InvalidResponsesAndAddresses(t *testing.T) {
	t.Parallel()
	for _, body := range []string{"", "{}", "[]", `{"data":{"token":7}}`, `{"data":null}`} {
		s := startServer(t, func(*http.Request) (int, string) { return 200, body })
		if token, err := s.client().Token(t.Context()); err == nil {
			t.Errorf("response %q: got token %q, want an error", body, token)
		}
	}
	upgrade := httptest.NewServer(http.HandlerFunc(testkit.ServeUpgrade))
	defer upgrade.Close()
	_, err := (&Client{URL: upgrade.URL, Key: "secret"}).Token(t.Context())
	var apiErr *Error
	if !errors.As(err, &apiErr) || apiErr.Status != http.StatusSwitchingProtocols {
		t.Errorf("status 101: got error %v", err)
	}
	for _, address := range []string{"", "relay.example", "ftp://x", "http://", "https://%zz"} {
		c := Client{URL: address, Key: "secret"}
		if _, err := c.Token(t.Context()); err == nil || !strings.Contains(err.Error(), "https://relay.example") {
			t.Errorf("address %q: got error %v", address, err)
		}
	}
}
