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

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/hub"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = 20 * time.Second

// server is a small relay: one key, tokens that count up, a real hub.
type server struct {
	*httptest.Server
	hub    *hub.Hub
	tokens atomic.Int64
	// answer, where it returns a status, answers instead.
	answer func(r *http.Request) (status int, body string)
	opened chan string // topics= of each upgrade
}

func startServer(t *testing.T, answer func(*http.Request) (int, string)) *server {
	t.Helper()
	s := &server{hub: hub.New(hub.Options{}), answer: answer, opened: make(chan string, 100)}
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
	if s.answer != nil {
		if status, body := s.answer(r); status != 0 {
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(status)
			_, _ = io.WriteString(w, body)
			return
		}
	}
	switch {
	case r.Header.Get("Authorization") != "Bearer secret" || r.URL.Path != "/base"+notifications:
		fail(w, relay.NewError(relay.CodeAuthInvalid, "the key is wrong"))
	case r.Method == http.MethodPost:
		body, _ := io.ReadAll(r.Body)
		_ = json.NewEncoder(w).Encode(map[string]any{"data": map[string]any{
			"ids": []string{r.Header.Get("Content-Type"), r.Header.Get("Idempotency-Key"), string(body), r.Header.Get("X-Hub-Id")},
		}})
	case !hub.IsUpgrade(r):
		_, _ = fmt.Fprintf(w, `{"data":{"token":"t %d+&"}}`, s.tokens.Add(1))
	default:
		if want := fmt.Sprintf("t %d+&", s.tokens.Load()); r.URL.Query().Get("token") != want || r.Header.Get("x-service-token") != want {
			fail(w, relay.NewError(relay.CodeAuthInvalid, "the token is wrong"))
			return
		}
		own := r.Header.Get("X-Hub-Id")
		problem := s.hub.Serve(w, r, hub.Subscription{Hub: own, Allows: func(h, _ string) bool { return h == own }})
		if problem != nil {
			fail(w, problem)
			return
		}
		s.opened <- r.URL.Query().Get("topics")
	}
}

func fail(w http.ResponseWriter, e *relay.Error) {
	w.WriteHeader(e.Status())
	_ = json.NewEncoder(w).Encode(map[string]any{"data": nil, "error": map[string]any{
		"status": e.Status(), "code": e.Code, "title": e.Title(), "detail": e.Detail, "source": e.Source, "extra": e.Extra,
	}})
}

func (s *server) client() *Client {
	return &Client{URL: s.URL + "/base/", Key: "secret", Hub: "h1", HTTP: s.Client()}
}

func notification(number int) relay.Notification {
	return relay.Notification{Hub: "h1", Account: "a1", Topic: "job.created", Data: json.RawMessage(
		fmt.Sprintf(`{"topic":"job.created","context":{"hub_id":"h1","account_id":"a1"},"n":%d}`, number))}
}

func quick() ListenOptions {
	return ListenOptions{LeastPause: time.Millisecond, MostPause: 2 * time.Millisecond}
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
	_, err := (&Client{URL: moved.URL, Key: "secret", Hub: "h1"}).Publish(t.Context(), "application/json", "", []byte("{}"))
	var refused *Error
	if !errors.As(err, &refused) || refused.Status != http.StatusMovedPermanently {
		t.Errorf("got %v, want an error of status 301", err)
	}
}

func TestListenEndsAtOnceWithoutAnAddress(t *testing.T) {
	t.Parallel()
	for _, address := range []string{"", "127.0.0.1:8080", "ftp://127.0.0.1"} {
		var got error
		for _, err := range (&Client{URL: address, Key: "secret"}).Listen(t.Context(), quick()) {
			got = err
		}
		if got == nil || !strings.Contains(got.Error(), "https://relay.example") {
			t.Errorf("%q: %v", address, got)
		}
	}
}

func TestErrors(t *testing.T) {
	t.Parallel()
	envelope := `{"error":{"status":422,"code":"422.invalid-argument","title":"T","detail":"D","source":"/1/topic","extra":{"k":"v"}},"data":null}`
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
				Code: "422.invalid-argument", Title: "T", Detail: "D", Source: "/1/topic", Extra: map[string]any{"k": "v"},
			},
			"422.invalid-argument at /1/topic: D",
		},
		{"a proxy's page", 502, "<html>", Error{}, "check the address"},
		{"no code", 404, "{}", Error{}, "404 Not Found"},
		{"a mad envelope", 400, `{"error":{"code":7}}`, Error{}, "400"},
		{"a redirect that leads nowhere", 304, "", Error{}, "304"},
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
				t.Errorf("%q does not say %q", err, test.text)
			}
		})
	}
}

func TestBadAnswersAndAddresses(t *testing.T) {
	t.Parallel()
	for _, body := range []string{"", "{}", "[]", `{"data":{"token":7}}`, `{"data":null}`} {
		s := startServer(t, func(*http.Request) (int, string) { return 200, body })
		if token, err := s.client().Token(t.Context()); err == nil {
			t.Errorf("%q gave the token %q", body, token)
		}
	}
	for _, address := range []string{"", "relay.example", "ftp://x", "http://", "https://%zz"} {
		c := Client{URL: address, Key: "secret"}
		if _, err := c.Token(t.Context()); err == nil || !strings.Contains(err.Error(), "https://relay.example") {
			t.Errorf("%q: %v", address, err)
		}
	}
}

func TestListen(t *testing.T) {
	t.Parallel()
	s := startServer(t, nil)
	o := quick()
	o.Topics = []string{"job.*", "!job.error"}
	number := 0
	o.Connected = func() {
		number++
		s.hub.Broadcast(hub.Batch{Notifications: []relay.Notification{notification(number)}})
	}
	got := 0
	for n, err := range s.client().Listen(t.Context(), o) {
		if err != nil {
			t.Fatal(err)
		}
		want := notification(1)
		if !reflect.DeepEqual(n, want) {
			t.Errorf("got %+v, want %+v", n, want)
		}
		got++
		break
	}
	if topics := <-s.opened; got != 1 || topics != "job.*,!job.error" {
		t.Errorf("got %d messages, topics %q", got, topics)
	}
}

func TestListenConnectsAgain(t *testing.T) {
	t.Parallel()
	var refuse atomic.Int64
	s := startServer(t, func(r *http.Request) (int, string) {
		if refuse.Add(-1) >= 0 {
			return []int{503, 429, 500}[refuse.Load()%3], ""
		}
		return 0, ""
	})
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	o := quick()
	o.MaxMessage = 300
	connections := 0
	o.Connected = func() {
		connections++
		bad := notification(0)
		bad.Data = json.RawMessage(`{"topic":7}`)
		s.hub.Broadcast(hub.Batch{Notifications: []relay.Notification{bad, notification(connections)}})
		if connections < 3 { // too large: the client ends this connection
			big := notification(0)
			big.Data = json.RawMessage(`{"topic":"` + strings.Repeat("x", 400) + `"}`)
			s.hub.Broadcast(hub.Batch{Notifications: []relay.Notification{big}})
		}
	}
	var reasons []string
	o.Disconnected = func(err error, pause time.Duration) {
		reasons = append(reasons, err.Error())
		if pause <= 0 {
			t.Errorf("paused for %v after %v", pause, err)
		}
		if connections == 2 && len(reasons) == 2 {
			refuse.Store(1)
		}
	}
	got := 0
	for n, err := range s.client().Listen(ctx, o) {
		if err != nil {
			t.Fatal(err)
		}
		got++
		if want := fmt.Sprintf(`"n":%d}`, got); !strings.HasSuffix(string(n.Data), want) {
			t.Fatalf("got %s, want %s", n.Data, want)
		}
		if got == 3 {
			break
		}
	}
	if len(reasons) != 3 || !strings.Contains(reasons[2], "503") {
		t.Errorf("disconnected for %q", reasons)
	}
}

func TestListenGivesUp(t *testing.T) {
	t.Parallel()
	upgrade := func(status int) func(*http.Request) (int, string) {
		return func(r *http.Request) (int, string) {
			if hub.IsUpgrade(r) {
				return status, fmt.Sprintf(`{"error":{"code":"%d.x","detail":"why"}}`, status)
			}
			return 0, ""
		}
	}
	token := func(status int) func(*http.Request) (int, string) {
		return func(*http.Request) (int, string) { return status, "{}" }
	}
	tests := []struct {
		name   string
		answer func(*http.Request) (int, string)
		status int
		tokens int64
	}{
		{"token 401", token(401), 401, 0},
		{"token 403", token(403), 403, 0},
		{"token 404", token(404), 404, 0},
		{"upgrade 422", upgrade(422), 422, 1},
		{"upgrade 403", upgrade(403), 403, 1},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			s := startServer(t, test.answer)
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			var last error
			for _, err := range s.client().Listen(ctx, quick()) {
				last = err
			}
			var answer *Error
			if !errors.As(last, &answer) || answer.Status != test.status || s.tokens.Load() != test.tokens {
				t.Errorf("ended with %v after %d tokens", last, s.tokens.Load())
			}
		})
	}
}

func TestListenEndsWithContext(t *testing.T) {
	t.Parallel()
	s := startServer(t, nil)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	o := quick()
	o.Connected = cancel
	for n, err := range s.client().Listen(ctx, o) {
		t.Errorf("got %v %v", n, err)
	}
	ctx, cancel = context.WithCancel(t.Context())
	o = ListenOptions{LeastPause: time.Hour, Disconnected: func(error, time.Duration) { cancel() }}
	for n, err := range (&Client{URL: "http://127.0.0.1:1"}).Listen(ctx, o) {
		t.Errorf("got %v %v", n, err)
	}
}

func TestRefusedTokens(t *testing.T) {
	t.Parallel()
	l := listener{upgrading: true, refusals: 1}
	refused := fmt.Errorf("x: %w", &Error{Status: 401})
	if l.permanent(refused) {
		t.Error("one refused token is permanent")
	}
	l.refusals = maxRefusals
	if !l.permanent(refused) {
		t.Error("a token that is always refused is not permanent")
	}
	if l.permanent(&Error{Status: 429}) || l.permanent(io.EOF) || l.permanent(&Error{Status: 503}) {
		t.Error("a passing error is permanent")
	}
	l.connected = true
	if l.permanent(&Error{Status: 404}) {
		t.Error("404 behind a connection is permanent")
	}
}

func TestPauseAfter(t *testing.T) {
	t.Parallel()
	tests := []struct {
		failures int
		at       float64
		want     time.Duration
	}{
		{0, 0, 500 * time.Millisecond},
		{0, 1, time.Second},
		{3, 1, 8 * time.Second},
		{4, 0.5, 7500 * time.Millisecond},
		{31, 1, 10 * time.Second},
		{1000, 0, 5 * time.Second},
	}
	for _, test := range tests {
		if got := pauseAfter(test.failures, time.Second, 10*time.Second, test.at); got != test.want {
			t.Errorf("pauseAfter(%d, %v) = %v, want %v", test.failures, test.at, got, test.want)
		}
	}
}

// FuzzDecode: whatever comes is refused or kept as it came.
func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"topic":"job.created","context":{"hub_id":"h"},"cursor":"1"}`))
	f.Add([]byte(`{"topic":7}`))
	f.Add([]byte(`[`))
	f.Fuzz(func(t *testing.T, data []byte) {
		n, err := decode(data)
		if err == nil && (n.Topic == "" || string(n.Data) != string(data)) {
			t.Errorf("%q became %+v", data, n)
		}
	})
}

func ExampleClient_Listen() {
	c := &Client{URL: "https://relay.example", Key: "hrk_…", Hub: "5e6f"}
	ctx, cancel := context.WithCancel(context.Background())
	cancel() // a program would wait for a signal
	for n, err := range c.Listen(ctx, ListenOptions{Topics: []string{"container.*"}}) {
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(n.Topic, n.Hub)
	}
	// Output:
}

// A member whose name differs in case only cannot pose as the one that routes.
func TestDecodeComparesNamesExactly(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		data string
		want relay.Notification
		bad  bool
	}{
		{
			data: `{"topic":"a.b","cursor":"c","context":{"hub_id":"h","account_id":"a"}}`,
			want: relay.Notification{Topic: "a.b", Hub: "h", Account: "a", Cursor: "c"},
		},
		{
			data: `{"topic":"a.b","TOPIC":"x","context":{"hub_id":"h","HUB_ID":"x","Account_Id":"x"},"Context":{"hub_id":"x"},"Cursor":"x"}`,
			want: relay.Notification{Topic: "a.b", Hub: "h"},
		},
		{data: `{"topic":"hubrelay.resync","cursor":null,"context":null}`, want: relay.Notification{Topic: "hubrelay.resync"}},
		{data: `{"Topic":"a.b"}`, bad: true},
		{data: `{"topic":1}`, bad: true},
		{data: `{"topic":"a.b","context":[]}`, bad: true},
		{data: `{"topic":"a.b","context":{"hub_id":{}}}`, bad: true},
		{data: `null`, bad: true},
		{data: `{`, bad: true},
	} {
		n, err := decode([]byte(tt.data))
		if tt.bad != (err != nil) {
			t.Errorf("%s: %v", tt.data, err)
			continue
		}
		n.Data = nil
		if !tt.bad && !reflect.DeepEqual(n, tt.want) {
			t.Errorf("%s: %+v", tt.data, n)
		}
	}
}
