package client

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/hub"
	"github.com/hubrelay/hubrelay/relay/internal/hub/transport"
)

// Who is one too many waits for as long as the server asks.
func TestListenObeysALimit(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		limits hub.Limits
		code   relay.Code
	}{
		"node": {hub.Limits{Node: 1}, relay.CodeNotReady},
		"hub":  {hub.Limits{Hub: 1}, relay.CodeRateLimiting},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := startServer(t, nil)
			s.hub = hub.New(hub.Options{Limits: test.limits})
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			told := false
			first, second := quick(), quick()
			second.OnDisconnected = func(err error, pause time.Duration) {
				var answer *Error
				if !errors.As(err, &answer) || answer.Code != test.code {
					t.Errorf("turned away with %v", err)
				} else if asked := answer.RetryAfter; asked < 2*time.Second || asked > 10*time.Second || pause != asked {
					t.Errorf("asked for %v, pauses for %v", asked, pause)
				}
				told = true
				cancel()
			}
			first.OnConnected = func() {
				for n, err := range s.client().Listen(ctx, second) {
					t.Errorf("got %v, %v", n, err)
				}
			}
			for n, err := range s.client().Listen(ctx, first) {
				t.Errorf("the first got %v, %v", n, err)
			}
			if !told {
				t.Error("nobody was turned away")
			}
		})
	}
}

// A server may ask for no more than five minutes, and for less than the client's own pause in vain.
func TestPauseIsBounded(t *testing.T) {
	t.Parallel()
	over, cancel := context.WithCancel(t.Context())
	cancel()
	for asked, want := range map[time.Duration]time.Duration{time.Hour: 5 * time.Minute, time.Minute: time.Minute, time.Second: 10 * time.Second} {
		var got time.Duration
		o := ListenOptions{MinBackoff: 20 * time.Second, OnDisconnected: func(_ error, pause time.Duration) { got = pause }}
		o.setDefaults()
		l := listener{client: &Client{}, options: o}
		l.backOff(over, &Error{Status: http.StatusTooManyRequests, RetryAfter: asked})
		if got < want || got > max(want, 20*time.Second) {
			t.Errorf("asked for %v, pauses for %v", asked, got)
		}
	}
}

// A server that ends each connection behind its first message is asked less and less often, and left alone for a while where
// it wants that.
func TestPauseGrowsBehindShortConnections(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		code  int
		least time.Duration
		want  time.Duration
	}{
		"1008": {websocket.ClosePolicyViolation, 50 * time.Millisecond, 100 * time.Millisecond}, // of the third
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
				_ = ws.WriteMessage(websocket.TextMessage, []byte(`{"topic":"hubrelay.cursor","context":{"hub_id":"h1"},"cursor":"c1"}`))
				_ = ws.WriteMessage(websocket.CloseMessage, websocket.FormatCloseMessage(test.code, ""))
				_ = ws.Close()
			}))
			defer s.Close()
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			var pauses []time.Duration
			grown := false
			o := ListenOptions{MinBackoff: test.least, OnDisconnected: func(_ error, pause time.Duration) {
				if pauses = append(pauses, pause); pause >= test.want || len(pauses) == 20 {
					grown = pause >= test.want
					cancel()
				}
			}}
			for n, err := range (&Client{URL: s.URL, Key: "secret", Hub: "h1"}).Listen(ctx, o) {
				t.Errorf("got %v, %v", n, err)
			}
			if !grown {
				t.Errorf("pauses of %v", pauses)
			}
		})
	}
}

// A redirect and a page of something in between end nothing.
func TestListenOutlastsAPage(t *testing.T) {
	t.Parallel()
	asked := 0
	s := startServer(t, func(r *http.Request) (int, string) {
		if transport.IsUpgrade(r) {
			return 0, ""
		}
		switch asked++; asked {
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
	o := quick()
	failed := 0
	o.OnDisconnected = func(_ error, pause time.Duration) {
		if failed++; failed == 1 && pause != time.Second { // which the test's server asks for
			t.Errorf("paused for %v", pause)
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
		t.Errorf("connected: %v, after %d failures", connected, failed)
	}
}
