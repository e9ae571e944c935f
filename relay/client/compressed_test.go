package client

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/clients"
	"github.com/hubrelay/hubrelay/relay/internal/clients/transport"
)

// Listen accepts compressed messages, and MaxMessage limits the decompressed size.
func TestListen_Compressed(t *testing.T) {
	t.Parallel()
	var offered atomic.Value
	s := startServer(t, func(r *http.Request) (int, string) {
		if transport.IsUpgrade(r) {
			offered.Store(r.Header.Get("Sec-WebSocket-Extensions"))
		}
		return 0, ""
	})
	s.hub = clients.New(clients.Options{Compression: clients.Compression{Enabled: true}})
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	const maxMessage = 10_000
	o := fastRetries()
	o.MaxMessage = maxMessage
	texts := []string{
		rand.Text(), strings.Repeat("fits ", maxMessage/10), strings.Repeat("is much too large ", maxMessage),
	}
	connections := 0
	o.OnConnected = func() {
		connections++
		var list []relay.Notification
		for _, text := range texts {
			n := notification(connections)
			n.Data, _ = json.Marshal(map[string]any{
				"topic": n.Topic, "context": map[string]any{"hub_id": "h1"}, "text": text, "n": connections,
			})
			list = append(list, n)
		}
		s.hub.Broadcast(clients.Batch{Notifications: list})
	}
	var reasons []error
	o.OnDisconnected = func(reason error, _ time.Duration) { reasons = append(reasons, reason) }
	received := 0
	for n, err := range s.client().Listen(ctx, o) {
		if err != nil {
			t.Fatal(err)
		}
		var got struct{ Text string }
		if err := json.Unmarshal(n.Data, &got); err != nil || got.Text != texts[received%2] {
			t.Fatalf("%v: got %.100q", err, got.Text)
		}
		if received++; received == 3 { // the first of the second connection
			break
		}
	}
	if received != 3 || len(reasons) == 0 || !errors.Is(reasons[0], websocket.ErrReadLimit) {
		t.Errorf("got %d events, disconnected by %v", received, reasons)
	}
	if got, _ := offered.Load().(string); !strings.HasPrefix(got, "permessage-deflate") {
		t.Errorf("the client offered %q", got)
	}
}
