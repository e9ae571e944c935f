package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/clients"
	"github.com/hubrelay/hubrelay/relay/internal/clients/transport"
)

func TestListen(t *testing.T) {
	t.Parallel()
	s := startServer(t, nil)
	o := fastRetries()
	o.Topics = []string{"job.*", "!job.error"}
	number := 0
	o.OnConnected = func() {
		number++
		s.hub.Broadcast(clients.Batch{Notifications: []relay.Notification{notification(number)}})
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

func TestListen_InvalidAddress(t *testing.T) {
	t.Parallel()
	for _, address := range []string{"", "127.0.0.1:8080", "ftp://127.0.0.1"} {
		var got error
		for _, err := range (&Client{URL: address, Key: "secret"}).Listen(t.Context(), fastRetries()) {
			got = err
		}
		if got == nil || !strings.Contains(got.Error(), "https://relay.example") {
			t.Errorf("address %q: got error %v", address, got)
		}
	}
}

func TestListen_InvalidTLS(t *testing.T) {
	t.Parallel()
	untrusted := httptest.NewUnstartedServer(http.NotFoundHandler())
	untrusted.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, 0)
	untrusted.StartTLS()
	t.Cleanup(untrusted.Close)
	plain := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(plain.Close)
	for address, want := range map[string]string{
		untrusted.URL: "certificate",
		strings.Replace(plain.URL, "http:", "https:", 1): "HTTP response to HTTPS client",
	} {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		var got error
		for _, err := range (&Client{URL: address, Key: "secret"}).Listen(ctx, fastRetries()) {
			got = err
		}
		if got == nil || !strings.Contains(got.Error(), want) {
			t.Errorf("address %q: got error %v, want %q", address, got, want)
		}
	}
}

func TestListen_Reconnects(t *testing.T) {
	t.Parallel()
	var rejections atomic.Int64
	s := startServer(t, func(r *http.Request) (int, string) {
		if rejections.Add(-1) >= 0 {
			return []int{503, 429, 500}[rejections.Load()%3], ""
		}
		return 0, ""
	})
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	o := fastRetries()
	o.MaxMessage = 300
	connections := 0
	o.OnConnected = func() {
		connections++
		bad := notification(0)
		bad.Data = json.RawMessage(`{"topic":7}`)
		s.hub.Broadcast(clients.Batch{Notifications: []relay.Notification{bad, notification(connections)}})
		if connections < 3 { // too large: the client closes this connection
			big := notification(0)
			big.Data = json.RawMessage(`{"topic":"` + strings.Repeat("x", 400) + `"}`)
			s.hub.Broadcast(clients.Batch{Notifications: []relay.Notification{big}})
		}
	}
	var reasons []string
	o.OnDisconnected = func(err error, delay time.Duration) {
		reasons = append(reasons, err.Error())
		if delay <= 0 {
			t.Errorf("got a delay of %v after %v", delay, err)
		}
		if connections == 2 && len(reasons) == 2 {
			rejections.Store(1)
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
		t.Errorf("got reasons %q, want 3 with a 503 last", reasons)
	}
}

func TestListen_PermanentErrors(t *testing.T) {
	t.Parallel()
	upgrade := func(status int) func(*http.Request) (int, string) {
		return func(r *http.Request) (int, string) {
			if transport.IsUpgrade(r) {
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
			for _, err := range s.client().Listen(ctx, fastRetries()) {
				last = err
			}
			var response *Error
			if !errors.As(last, &response) || response.Status != test.status || s.tokens.Load() != test.tokens {
				t.Errorf("got error %v after %d tokens, want status %d after %d",
					last, s.tokens.Load(), test.status, test.tokens)
			}
		})
	}
}

func TestListen_ContextEnds(t *testing.T) {
	t.Parallel()
	s := startServer(t, nil)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	o := fastRetries()
	o.OnConnected = cancel
	for n, err := range s.client().Listen(ctx, o) {
		t.Errorf("got %v %v", n, err)
	}
	ctx, cancel = context.WithCancel(t.Context())
	o = ListenOptions{MinBackoff: time.Hour, OnDisconnected: func(error, time.Duration) { cancel() }}
	for n, err := range (&Client{URL: "http://127.0.0.1:1"}).Listen(ctx, o) {
		t.Errorf("got %v %v", n, err)
	}
}

func TestIsPermanent(t *testing.T) {
	t.Parallel()
	l := listener{gotToken: true, tokenRejections: 1}
	rejected := fmt.Errorf("x: %w", &Error{Status: 401})
	if l.isPermanent(rejected) {
		t.Error("isPermanent() = true after one rejected token")
	}
	l.tokenRejections = maxTokenRejections
	if !l.isPermanent(rejected) {
		t.Errorf("isPermanent() = false after %d rejected tokens", maxTokenRejections)
	}
	if l.isPermanent(&Error{Status: 429}) || l.isPermanent(io.EOF) || l.isPermanent(&Error{Status: 503}) {
		t.Error("isPermanent() = true for a temporary error")
	}
	l.connected = true
	if l.isPermanent(&Error{Status: 404}) {
		t.Error("isPermanent() = true for a 404 after a connection")
	}
}

func TestRetryDelay(t *testing.T) {
	t.Parallel()
	tests := []struct {
		failures int
		fraction float64
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
		if got := retryDelay(test.failures, time.Second, 10*time.Second, test.fraction); got != test.want {
			t.Errorf("retryDelay(%d, %v) = %v, want %v", test.failures, test.fraction, got, test.want)
		}
	}
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
