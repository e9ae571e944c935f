package client

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/gorilla/websocket"

	"github.com/hubrelay/hubrelay/relay"
)

// A server that was set up anew refuses the cursor that it gave: the listener is told, and goes on without.
func TestListenWithoutItsCursor(t *testing.T) {
	t.Parallel()
	var connections atomic.Int64
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !websocket.IsWebSocketUpgrade(r) {
			_, _ = fmt.Fprint(w, `{"data":{"token":"t"}}`)
			return
		}
		if after := r.URL.Query().Get("after"); after != "now" {
			fail(w, relay.NewError(relay.CodeInvalidArgument, after+" is not known here").WithExtra("parameter", "after"))
			return
		}
		ws, err := (&websocket.Upgrader{}).Upgrade(w, r, nil)
		if err != nil {
			t.Error(err)
			return
		}
		n := connections.Add(1)
		_ = ws.WriteMessage(websocket.TextMessage, fmt.Appendf(nil, `{"topic":"job.created","context":{"hub_id":"h1"},"cursor":"c%d"}`, n))
		_ = ws.Close()
	}))
	defer s.Close()
	var got []string
	for n, err := range (&Client{URL: s.URL, Key: "secret", Hub: "h1"}).Listen(t.Context(), quick()) {
		if err != nil {
			t.Fatal(err)
		}
		if got = append(got, n.Topic+" "+n.Cursor); len(got) == 3 {
			break
		}
	}
	if want := []string{"job.created c1", "hubrelay.resync ", "job.created c2"}; !slices.Equal(got, want) { // a server that tells no place
		t.Errorf("got %q, want %q", got, want)
	}
	o := quick()
	o.After = "mine"
	for _, err := range (&Client{URL: s.URL, Key: "secret", Hub: "h1"}).Listen(t.Context(), o) {
		if err == nil {
			t.Error("a cursor of the caller's own was left out without a word")
		}
		break
	}
}

// Who is told of a loss looks at how things are. What changes between the refusal and the next stream is seen then, since
// nobody is told before that stream, and the place comes with the word of the loss alone.
func TestListenTellsOfALossOnceConnected(t *testing.T) {
	t.Parallel()
	var state, tokens, connections atomic.Int64
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch after := r.URL.Query().Get("after"); {
		case !websocket.IsWebSocketUpgrade(r):
			if tokens.Add(1) == 3 { // behind the refusal
				state.Add(1)
			}
			_, _ = fmt.Fprint(w, `{"data":{"token":"t"}}`)
			return
		case after != "now":
			fail(w, relay.NewError(relay.CodeInvalidArgument, after+" is not known here").WithExtra("parameter", "after"))
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
			if n == 3 { // a place may come at any time
				topics = append(topics, topics...)
			}
			for _, topic := range topics {
				_ = ws.WriteMessage(websocket.TextMessage, fmt.Appendf(nil, `{"topic":%q,"context":{"hub_id":"h1"},"cursor":"c%d"}`, topic, n))
			}
		default: // ends before it has said where it begins
		}
	}))
	defer s.Close()
	o := quick()
	var began []string
	o.OnStart = func(cursor string) { began = append(began, cursor) }
	var got []string
	for n, err := range (&Client{URL: s.URL, Key: "secret", Hub: "h1"}).Listen(t.Context(), o) {
		if err != nil {
			t.Fatal(err)
		}
		if n.Topic == relay.TopicResync {
			var message struct{ Cursor string }
			if err := json.Unmarshal(n.Data, &message); err != nil || message.Cursor != n.Cursor {
				t.Errorf("%v: the cursor of %s is not %s", err, n.Data, n.Cursor)
			}
			if state.Load() != 1 || connections.Load() != 3 {
				t.Errorf("told of the loss in the state %d after %d connections", state.Load(), connections.Load())
			}
		}
		if got = append(got, n.Topic+" "+n.Cursor); len(got) == 4 {
			break
		}
	}
	if want := []string{"job.created c1", "hubrelay.resync c3", "job.created c3", "job.created c3"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if !slices.Equal(began, []string{"c1", "c3"}) { // of the third stream the second
		t.Errorf("began at %q", began)
	}
}

// A connection that ends before anything has come is gone on with where it began: the caller misses nothing of what was
// published meanwhile, and sees no message that is not a notification.
func TestListenBeginsOnce(t *testing.T) {
	t.Parallel()
	var connections atomic.Int64
	asked := make(chan string, 10)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !websocket.IsWebSocketUpgrade(r) {
			_, _ = fmt.Fprint(w, `{"data":{"token":"t"}}`)
			return
		}
		asked <- r.URL.Query().Get("after")
		ws, err := (&websocket.Upgrader{}).Upgrade(w, r, nil)
		if err != nil {
			t.Error(err)
			return
		}
		n := connections.Add(1)
		if topic := map[int64]string{1: "hubrelay.cursor", 3: "job.created"}[n]; topic != "" {
			_ = ws.WriteMessage(websocket.TextMessage, fmt.Appendf(nil, `{"topic":%q,"context":{"hub_id":"h1"},"cursor":"c%d"}`, topic, n))
		}
		_ = ws.Close()
	}))
	defer s.Close()
	for n, err := range (&Client{URL: s.URL, Key: "secret", Hub: "h1"}).Listen(t.Context(), quick()) {
		if err != nil || n.Topic != "job.created" || n.Cursor != "c3" {
			t.Errorf("got %+v, %v", n, err)
		}
		break
	}
	for _, want := range []string{"now", "c1", "c1"} {
		if got := <-asked; got != want {
			t.Errorf("asked for what is behind %q, want %q", got, want)
		}
	}
}
