package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/hub"
	"github.com/hubrelay/hubrelay/relay/internal/hub/transport"
)

func TestListen(t *testing.T) {
	t.Parallel()
	s := startServer(t, nil)
	o := quick()
	o.Topics = []string{"job.*", "!job.error"}
	number := 0
	o.OnConnected = func() {
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
	o.OnConnected = func() {
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
	o.OnDisconnected = func(err error, pause time.Duration) {
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

func TestRefusedTokens(t *testing.T) {
	t.Parallel()
	l := listener{gotToken: true, tokenRejections: 1}
	refused := fmt.Errorf("x: %w", &Error{Status: 401})
	if l.isPermanent(refused) {
		t.Error("one refused token is permanent")
	}
	l.tokenRejections = maxTokenRejections
	if !l.isPermanent(refused) {
		t.Error("a token that is always refused is not permanent")
	}
	if l.isPermanent(&Error{Status: 429}) || l.isPermanent(io.EOF) || l.isPermanent(&Error{Status: 503}) {
		t.Error("a passing error is permanent")
	}
	l.connected = true
	if l.isPermanent(&Error{Status: 404}) {
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
		if got := backoff(test.failures, time.Second, 10*time.Second, test.at); got != test.want {
			t.Errorf("pauseAfter(%d, %v) = %v, want %v", test.failures, test.at, got, test.want)
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
