package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/clients"
	"github.com/hubrelay/hubrelay/relay/internal/clients/transport"
)

// A client that exceeds a limit waits as long as the server requests.
func TestListen_HonorsRetryAfter(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		limits clients.Limits
		code   relay.Code
	}{
		"node": {clients.Limits{Node: 1}, relay.CodeNotReady},
		"hub":  {clients.Limits{Hub: 1}, relay.CodeRateLimiting},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := startServer(t, nil)
			s.hub = clients.New(clients.Options{Limits: test.limits})
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			rejected := false
			first, second := fastRetries(), fastRetries()
			second.OnDisconnected = func(err error, delay time.Duration) {
				var response *Error
				if !errors.As(err, &response) || response.Code != test.code {
					t.Errorf("got error %v, want %s", err, test.code)
				} else if d := response.RetryAfter; d < 2*time.Second || d > 10*time.Second || delay != d {
					t.Errorf("got a delay of %v, requested %v", delay, d)
				}
				rejected = true
				cancel()
			}
			first.OnConnected = func() {
				for n, err := range s.client().Listen(ctx, second) {
					t.Errorf("got %v, %v", n, err)
				}
			}
			for n, err := range s.client().Listen(ctx, first) {
				t.Errorf("first client: got %v, %v", n, err)
			}
			if !rejected {
				t.Error("the second client was not rejected")
			}
		})
	}
}

// Retry-After is limited to five minutes, and cannot shorten the delay of the client.
func TestWaitRetry_LimitsRetryAfter(t *testing.T) {
	t.Parallel()
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	for requested, want := range map[time.Duration]time.Duration{
		time.Hour: 5 * time.Minute, time.Minute: time.Minute, time.Second: 10 * time.Second,
	} {
		var got time.Duration
		o := ListenOptions{
			MinBackoff:     20 * time.Second,
			OnDisconnected: func(_ error, delay time.Duration) { got = delay },
		}
		o.setDefaults()
		l := listener{client: &Client{}, options: o}
		l.waitRetry(canceled, &Error{Status: http.StatusTooManyRequests, RetryAfter: requested})
		if got < want || got > max(want, 20*time.Second) {
			t.Errorf("Retry-After %v: got a delay of %v, want %v", requested, got, want)
		}
	}
}

// If each connection ends after its first message, the delays grow. After a close with 1013 they have a minimum.
func TestListen_DelayGrowsAfterShortConnections(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		code       int
		minBackoff time.Duration
		want       time.Duration
	}{
		"1008": {websocket.ClosePolicyViolation, 50 * time.Millisecond, 100 * time.Millisecond}, // the third delay
		"1013": {websocket.CloseTryAgainLater, time.Millisecond, 2 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if !websocket.IsWebSocketUpgrade(r) {
					_, _ = io.WriteString(w, `{"data":{"token":"t"}}`)
					return
				}
				ws, err := (&websocket.Upgrader{}).Upgrade(w, r, nil)
				if err != nil {
					t.Error(err)
					return
				}
				const first = `{"topic":"hubrelay.cursor","context":{"hub_id":"h1"},"cursor":"c1"}`
				_ = ws.WriteMessage(websocket.TextMessage, []byte(first))
				_ = ws.WriteMessage(websocket.CloseMessage, websocket.FormatCloseMessage(test.code, ""))
				_ = ws.Close()
			}))
			defer s.Close()
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			var delays []time.Duration
			hasGrown := false
			o := ListenOptions{MinBackoff: test.minBackoff, OnDisconnected: func(_ error, delay time.Duration) {
				if delays = append(delays, delay); delay >= test.want || len(delays) == 20 {
					hasGrown = delay >= test.want
					cancel()
				}
			}}
			for n, err := range (&Client{URL: s.URL, Key: "secret", Hub: "h1"}).Listen(ctx, o) {
				t.Errorf("got %v, %v", n, err)
			}
			if !hasGrown {
				t.Errorf("got delays %v, want one of at least %v", delays, test.want)
			}
		})
	}
}

// Listen tries again after a redirect and after the page of a proxy.
func TestListen_RetriesAfterForeignResponses(t *testing.T) {
	t.Parallel()
	requests := 0
	s := startServer(t, func(r *http.Request) (int, string) {
		if transport.IsUpgrade(r) {
			return 0, ""
		}
		switch requests++; requests {
		case 1:
			return http.StatusFound, ""
		case 2:
			return http.StatusOK, "<html>back soon</html>"
		default:
			return 0, ""
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	o := fastRetries()
	failed := 0
	o.OnDisconnected = func(_ error, delay time.Duration) {
		if failed++; failed == 1 && delay != time.Second { // the Retry-After of the test server
			t.Errorf("got a delay of %v, want 1s", delay)
		}
	}
	connected := false
	o.OnConnected = func() {
		connected = true
		cancel()
	}
	for n, err := range s.client().Listen(ctx, o) {
		t.Errorf("got %v, %v", n, err)
	}
	if !connected || failed != 2 {
		t.Errorf("got connected %v after %d failures, want true after 2", connected, failed)
	}
}

// A header without an end takes a bounded amount of memory, and the listener tries again.
func TestListen_EndlessUpgradeHeader(t *testing.T) {
	t.Parallel()
	var upgrades atomic.Int64
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !transport.IsUpgrade(r) {
			_, _ = io.WriteString(w, `{"data":{"token":"t"}}`)
			return
		}
		upgrades.Add(1)
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer func() { _ = conn.Close() }()
		_, err = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\n")
		for sent := 0; err == nil; sent++ {
			if sent > 16<<20/64 {
				t.Error("the client read more than 16 MiB")
				return
			}
			_, err = fmt.Fprintf(conn, "Header-%08d: %s\r\n", sent, strings.Repeat("x", 44))
		}
	}))
	defer s.Close()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	o := fastRetries()
	var got error
	o.OnDisconnected = func(err error, _ time.Duration) {
		got = err
		cancel()
	}
	for n, err := range (&Client{URL: s.URL, Key: "secret", Hub: "h1", HTTP: s.Client()}).Listen(ctx, o) {
		t.Errorf("got %v, %v", n, err)
	}
	if got == nil || !strings.Contains(got.Error(), "more than 256 KiB") || upgrades.Load() != 1 {
		t.Errorf("got error %v after %d upgrades", got, upgrades.Load())
	}
}
