package client

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"
)

// A flood of frames that yield nothing is read slowly, but loses no event after it.
func TestListen_LimitsFramesWithoutEvents(t *testing.T) {
	t.Parallel()
	const frames = maxIdleFrames + maxIdleFrames/2
	const large = 25 * idleFrameSize
	for name, flood := range map[string]struct {
		frames, kind int
		text         string
	}{
		"pings":         {frames, websocket.PingMessage, ""},
		"pongs":         {frames, websocket.PongMessage, ""},
		"invalid":       {frames, websocket.TextMessage, "{}"},
		"cursors":       {frames, websocket.TextMessage, `{"topic":"hubrelay.cursor","cursor":"c"}`},
		"large invalid": {frames / 25, websocket.TextMessage, strings.Repeat("x", large)},
		"large cursors": {frames / 25, websocket.TextMessage, strings.Repeat(" ", large) + `{"topic":"hubrelay.cursor","cursor":"c"}`},
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
				for range flood.frames {
					if err := ws.WriteMessage(flood.kind, []byte(flood.text)); err != nil {
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
