package client

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/gorilla/websocket"
)

// A flood of pings, pongs or invalid messages is read slowly, but loses no event after it.
func TestListen_LimitsFramesWithoutEvents(t *testing.T) {
	t.Parallel()
	for name, write := range map[string]func(ws *websocket.Conn) error{
		"pings":   func(ws *websocket.Conn) error { return ws.WriteMessage(websocket.PingMessage, nil) },
		"pongs":   func(ws *websocket.Conn) error { return ws.WriteMessage(websocket.PongMessage, nil) },
		"invalid": func(ws *websocket.Conn) error { return ws.WriteMessage(websocket.TextMessage, []byte("{}")) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if !websocket.IsWebSocketUpgrade(r) {
					_, _ = fmt.Fprint(w, `{"data":{"token":"t"}}`)
					return
				}
				ws, err := (&websocket.Upgrader{}).Upgrade(w, r, nil)
				if err != nil {
					t.Error(err)
					return
				}
				defer func() { _ = ws.Close() }()
				for range maxIdleFrames + maxIdleFrames/2 {
					if err := write(ws); err != nil {
						t.Error(err)
						return
					}
				}
				writeNotification(ws, "job.created", 1)
				_, _, _ = ws.ReadMessage() // until the client closes the connection
			}))
			defer s.Close()
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			var connected time.Time
			o := fastRetries()
			o.OnConnected = func() { connected = time.Now() }
			got := ""
			for n, err := range (&Client{URL: s.URL, Key: "secret", Hub: "h1"}).Listen(ctx, o) {
				if err != nil {
					t.Fatal(err)
				}
				got = n.Topic
				break
			}
			if took := time.Since(connected); got != "job.created" || took < 400*time.Millisecond {
				t.Errorf("got topic %q after %s, want job.created after half a second", got, took)
			}
		})
	}
}
