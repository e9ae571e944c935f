package slack

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"strconv"
	"time"

	slackgo "github.com/slack-go/slack"

	"github.com/hubrelay/hubrelay/internal/httpclient"
	"github.com/hubrelay/hubrelay/internal/redact"
	"github.com/hubrelay/hubrelay/relay"
)

// appSink posts as an app, to channels and threads. It may be used concurrently.
type appSink struct {
	transport *httpclient.Transport
	api       *httpclient.Target
	header    http.Header
	token     func() string
	recent    redact.Recent // tokens
	renderer  *renderer
	routes    *routeTable
	thread    string
	ttl       time.Duration
	memory    relay.SharedState // nil if threads are disabled
	now       func() time.Time
	log       *slog.Logger
	// countRequests counts requests besides one per delivery.
	countRequests func(n int)
}

// outgoing contains the arguments of a method that sends a message.
type outgoing struct {
	Channel     string `json:"channel"`
	TS          string `json:"ts,omitempty"`
	ThreadTS    string `json:"thread_ts,omitempty"`
	Text        string `json:"text"`
	Blocks      any    `json:"blocks,omitempty"`
	Attachments any    `json:"attachments,omitempty"`
	Parse       string `json:"parse,omitempty"`
	UnfurlLinks *bool  `json:"unfurl_links,omitempty"`
	UnfurlMedia *bool  `json:"unfurl_media,omitempty"`
}

func newOutgoing(channel string, m *slackgo.WebhookMessage) *outgoing {
	out := &outgoing{
		Channel: channel, Text: m.Text, Parse: m.Parse, UnfurlLinks: m.UnfurlLinks, UnfurlMedia: m.UnfurlMedia,
	}
	if m.Blocks != nil {
		out.Blocks = m.Blocks
	}
	if len(m.Attachments) > 0 {
		out.Attachments = m.Attachments
	}
	return out
}

// rateKey identifies the app and its channel. Slack allows about one message per second for each.
func (a *appSink) rateKey() string {
	sum := sha256.Sum256([]byte("app " + a.api.Host() + " " + a.token() + " " + a.routes.defaultChannel))
	return hex.EncodeToString(sum[:12])
}

// deliverMessage posts d as a separate message, or updates its thread.
func (a *appSink) deliverMessage(ctx context.Context, d relay.Delivery, m *slackgo.WebhookMessage) error {
	channel, key := a.routes.channelFor(d), threadOf(d, a.thread)
	if key != "" && a.memory != nil {
		return a.postInThread(ctx, d, m, channel, key)
	}
	if _, err := a.callMethod(ctx, methodPost, newOutgoing(channel, m)); err != nil {
		return err
	}
	relay.ReportStatus(ctx, http.StatusOK)
	return nil
}

// previewRequest returns the first message of a thread. Later ones also have a thread_ts.
func (a *appSink) previewRequest(d relay.Delivery, m *slackgo.WebhookMessage) (relay.Preview, error) {
	body, err := json.Marshal(newOutgoing(a.routes.channelFor(d), m))
	if err != nil {
		return relay.Preview{}, fmt.Errorf("render delivery %s: %w", d.ID, err)
	}
	return relay.Preview{
		Method: "POST", Target: a.methodURL(methodPost).String(), Payload: body,
		Headers: []relay.Header{
			{Name: "Host", Value: a.api.Host()},
			{Name: "Authorization", Value: "Bearer (hidden)"},
			{Name: "Content-Type", Value: a.header.Get("Content-Type")},
			{Name: "User-Agent", Value: a.header.Get("User-Agent")},
			{Name: "Content-Length", Value: strconv.Itoa(len(body))},
		},
	}, nil
}
