package demo

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/hubrelay/hubrelay/relay"
)

// receiver is the webhook receiver of the demo. It verifies signatures without code of the relay.
type receiver struct {
	url    string
	server *http.Server
}

// newReceiver listens on a free loopback port and calls received for each request, with an error if the request was
// rejected.
func newReceiver(secret string, received func(id string, n relay.Notification, rejected error)) (*receiver, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listen for webhooks: %w", err)
	}
	handler := func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 1<<20))
		if err == nil {
			err = verifySignature(secret, r.Header, body)
		}
		n := relay.Notification{ID: r.Header.Get("webhook-id"), Data: body}
		if err == nil {
			var e relay.Envelope
			err = json.Unmarshal(body, &e)
			n.Topic = e.Topic
		}
		received(n.ID, n, err)
		if err != nil {
			http.Error(w, "rejected", http.StatusBadRequest)
			return
		}
		w.WriteHeader(http.StatusNoContent)
	}
	r := &receiver{
		url: "http://" + listener.Addr().String() + "/hook",
		server: &http.Server{
			Handler:           http.HandlerFunc(handler),
			ReadHeaderTimeout: 5 * time.Second,
			ReadTimeout:       10 * time.Second,
			ErrorLog:          slog.NewLogLogger(slog.DiscardHandler, slog.LevelError),
		},
	}
	go func() { _ = r.server.Serve(listener) }()
	return r, nil
}

func (r *receiver) close() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = r.server.Shutdown(ctx)
}

// verifySignature checks a signature of Standard Webhooks 1.0.
func verifySignature(secret string, header http.Header, body []byte) error {
	key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(secret, "whsec_"))
	if err != nil {
		return fmt.Errorf("decode secret: %w", err)
	}
	mac := hmac.New(sha256.New, key)
	_, _ = fmt.Fprintf(mac, "%s.%s.%s", header.Get("webhook-id"), header.Get("webhook-timestamp"), body)
	want := "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))
	for _, got := range strings.Fields(header.Get("webhook-signature")) {
		if hmac.Equal([]byte(got), []byte(want)) {
			return nil
		}
	}
	return errors.New("no signature matches")
}
