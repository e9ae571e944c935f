package client

import (
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
		if after := r.URL.Query().Get("after"); after != "" {
			fail(w, relay.NewError(relay.CodeInvalidArgument, after+" is not known here").With("parameter", "after"))
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
	if want := []string{"job.created c1", "hubrelay.resync ", "job.created c2"}; !slices.Equal(got, want) {
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
