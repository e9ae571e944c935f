package client

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/gorilla/websocket"

	"github.com/hubrelay/hubrelay/relay"
)

// If the server rejects its own cursor, for example after a new installation, Listen yields a resync and continues
// without the cursor.
func TestListen_StaleCursor(t *testing.T) {
	t.Parallel()
	var connections atomic.Int64
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !websocket.IsWebSocketUpgrade(r) {
			_, _ = fmt.Fprint(w, `{"data":{"token":"t"}}`)
			return
		}
		if after := r.URL.Query().Get("after"); after != "now" {
			writeError(w, relay.NewError(relay.CodeInvalidArgument, "unknown cursor").WithExtra("parameter", "after"))
			return
		}
		ws, err := (&websocket.Upgrader{}).Upgrade(w, r, nil)
		if err != nil {
			t.Error(err)
			return
		}
		n := connections.Add(1)
		writeNotification(ws, "job.created", n)
		_ = ws.Close()
	}))
	defer s.Close()
	var got []string
	for n, err := range (&Client{URL: s.URL, Key: "secret", Hub: "h1"}).Listen(t.Context(), fastRetries()) {
		if err != nil {
			t.Fatal(err)
		}
		if got = append(got, n.Topic+" "+n.Cursor); len(got) == 3 {
			break
		}
	}
	// The test server does not send the cursor of the start.
	if want := []string{"job.created c1", "hubrelay.resync ", "job.created c2"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	o := fastRetries()
	o.After = "mine"
	for _, err := range (&Client{URL: s.URL, Key: "secret", Hub: "h1"}).Listen(t.Context(), o) {
		if err == nil {
			t.Error("the rejected cursor of the caller caused no error")
		}
		break
	}
}

// If a request is too large because of a cursor of the server, Listen continues without the cursor. A cursor of the caller is
// a permanent error.
func TestListen_CursorTooLargeForRequest(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("c", 300)
	for _, status := range []int{413, 414, 431} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			t.Parallel()
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				switch after := r.URL.Query().Get("after"); {
				case !websocket.IsWebSocketUpgrade(r):
					_, _ = fmt.Fprint(w, `{"data":{"token":"t"}}`)
					return
				case after != "now":
					w.WriteHeader(status)
					return
				}
				ws, err := (&websocket.Upgrader{}).Upgrade(w, r, nil)
				if err != nil {
					t.Error(err)
					return
				}
				text := fmt.Appendf(nil, `{"topic":"job.created","context":{"hub_id":"h1"},"cursor":%q}`, long)
				_ = ws.WriteMessage(websocket.TextMessage, text)
				_ = ws.Close()
			}))
			defer s.Close()
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			c := &Client{URL: s.URL, Key: "secret", Hub: "h1"}
			var got []string
			for n, err := range c.Listen(ctx, fastRetries()) {
				if err != nil {
					t.Fatal(err)
				}
				if got = append(got, n.Topic); len(got) == 3 {
					break
				}
			}
			if want := []string{"job.created", "hubrelay.resync", "job.created"}; !slices.Equal(got, want) {
				t.Errorf("got %q, want %q", got, want)
			}
			for after, want := range map[string]bool{long: true, "short": false} {
				o := fastRetries()
				o.After = after
				for _, err := range c.Listen(ctx, o) {
					if err == nil || IsCursorRejected(err) != want {
						t.Errorf("cursor of %d bytes: got error %v, want a rejected cursor: %v", len(after), err, want)
					}
					break
				}
			}
		})
	}
}

// writeNotification writes a message with the cursor "c" and n.
func writeNotification(ws *websocket.Conn, topic string, n int64) {
	text := fmt.Appendf(nil, `{"topic":%q,"context":{"hub_id":"h1"},"cursor":"c%d"}`, topic, n)
	_ = ws.WriteMessage(websocket.TextMessage, text)
}

// The resync is yielded after the next stream is open. A caller that then fetches the state sees the changes made
// between the rejection and the new stream. The cursor is only in the resync.
func TestListen_ResyncAfterReconnect(t *testing.T) {
	t.Parallel()
	var state, tokens, connections atomic.Int64
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch after := r.URL.Query().Get("after"); {
		case !websocket.IsWebSocketUpgrade(r):
			if tokens.Add(1) == 3 { // after the rejection
				state.Add(1)
			}
			_, _ = fmt.Fprint(w, `{"data":{"token":"t"}}`)
			return
		case after != "now":
			writeError(w, relay.NewError(relay.CodeInvalidArgument, "unknown cursor").WithExtra("parameter", "after"))
			return
		}
		ws, err := (&websocket.Upgrader{}).Upgrade(w, r, nil)
		if err != nil {
			t.Error(err)
			return
		}
		defer func() { _ = ws.Close() }()
		switch n := connections.Add(1); n {
		case 1, 3:
			topics := []string{"hubrelay.cursor", "job.created"}
			if n == 3 { // a cursor may arrive at any time
				topics = append(topics, topics...)
			}
			for _, topic := range topics {
				writeNotification(ws, topic, n)
			}
		default: // ends before it has sent its start
		}
	}))
	defer s.Close()
	o := fastRetries()
	var starts []string
	o.OnStart = func(cursor string) { starts = append(starts, cursor) }
	var got []string
	for n, err := range (&Client{URL: s.URL, Key: "secret", Hub: "h1"}).Listen(t.Context(), o) {
		if err != nil {
			t.Fatal(err)
		}
		if n.Topic == relay.TopicResync {
			var message struct{ Cursor string }
			if err := json.Unmarshal(n.Data, &message); err != nil || message.Cursor != n.Cursor {
				t.Errorf("got cursor %q in %s, want %q; error %v", message.Cursor, n.Data, n.Cursor, err)
			}
			if state.Load() != 1 || connections.Load() != 3 {
				t.Errorf("got the resync in state %d after %d connections", state.Load(), connections.Load())
			}
		}
		if got = append(got, n.Topic+" "+n.Cursor); len(got) == 4 {
			break
		}
	}
	want := []string{"job.created c1", "hubrelay.resync c3", "job.created c3", "job.created c3"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if !slices.Equal(starts, []string{"c1", "c3"}) { // the second cursor of the third stream
		t.Errorf("got starts %q, want c1 and c3", starts)
	}
}

// If a connection ends before its first notification, the next one continues at its start. The caller misses nothing,
// and receives no cursor messages.
func TestListen_ContinuesAtStart(t *testing.T) {
	t.Parallel()
	var connections atomic.Int64
	cursors := make(chan string, 10)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !websocket.IsWebSocketUpgrade(r) {
			_, _ = fmt.Fprint(w, `{"data":{"token":"t"}}`)
			return
		}
		cursors <- r.URL.Query().Get("after")
		ws, err := (&websocket.Upgrader{}).Upgrade(w, r, nil)
		if err != nil {
			t.Error(err)
			return
		}
		n := connections.Add(1)
		if topic := map[int64]string{1: "hubrelay.cursor", 3: "job.created"}[n]; topic != "" {
			writeNotification(ws, topic, n)
		}
		_ = ws.Close()
	}))
	defer s.Close()
	for n, err := range (&Client{URL: s.URL, Key: "secret", Hub: "h1"}).Listen(t.Context(), fastRetries()) {
		if err != nil || n.Topic != "job.created" || n.Cursor != "c3" {
			t.Errorf("got %+v, %v", n, err)
		}
		break
	}
	for _, want := range []string{"now", "c1", "c1"} {
		if got := <-cursors; got != want {
			t.Errorf("got after=%q, want %q", got, want)
		}
	}
}
