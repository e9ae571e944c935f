// Package slack posts notifications to Slack as messages for people, with an incoming webhook
// (https://docs.slack.dev/messaging/sending-messages-using-incoming-webhooks) or as an app with threads.
//
// It makes one attempt and classifies the response. Retries, rates, digests and dead letters belong to
// relay/internal/delivery. It imports no other sink. It uses only the message types of slack-go: requests go through
// internal/httpclient, which guards the network and keeps the URL secret.
package slack

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hubrelay/hubrelay/internal/httpclient"
	"github.com/hubrelay/hubrelay/internal/netguard"
	"github.com/hubrelay/hubrelay/internal/redact"
	"github.com/hubrelay/hubrelay/internal/tmpl"
	"github.com/hubrelay/hubrelay/relay"
)

var (
	_ relay.Sink        = (*Sink)(nil)
	_ relay.SharedLimit = (*Sink)(nil)
	_ relay.Previewer   = (*Sink)(nil)
	_ relay.Config      = (*Config)(nil)
)

// Kind describes the sink type slack.
func Kind() relay.SinkKind {
	return relay.SinkKind{
		Type: "slack",
		Config: func() relay.Config {
			return &Config{APIURL: defaultAPI, Thread: threadAll, ThreadTTL: defaultTTL}
		},
		// "Rate limits" in Slack's documentation: one message per second and webhook, apart from short bursts.
		Rate:           relay.Rate{Count: 1, Per: time.Second},
		DigestOverRate: true,
		Open: relay.OpenAs("slack sink",
			func(s relay.SinkSettings, c *Config) (*Sink, error) { return open(s, c, time.Now) }),
	}
}

// Sink posts to one incoming webhook, or as an app. Deliver may be called concurrently.
type Sink struct {
	app       *appSink // nil for an incoming webhook
	templates *tmpl.Set
	client    *httpclient.Client
	target    func() *httpclient.Target
	recent    redact.Recent // URLs
	header    http.Header
	renderer  *renderer
	now       func() time.Time
}

func open(s relay.SinkSettings, c *Config, now func() time.Time) (*Sink, error) {
	if err := c.validate(); err != nil {
		return nil, err
	}
	g, err := netguard.New(c.AllowCIDRs)
	if err != nil {
		return nil, err
	}
	sink := &Sink{renderer: newRenderer(), now: now}
	if sink.templates, err = c.templateSources().Open(s); err != nil {
		return nil, err
	}
	if c.isApp() {
		sink.app, err = c.openApp(s, g, sink.renderer, now)
		return sink, err
	}
	sink.client = httpclient.NewClient(g, nil)
	if sink.target, err = c.urlSetting(g).Open(s.Log, now); err != nil {
		return nil, err
	}
	sink.header = http.Header{"Content-Type": {"application/json"}, "User-Agent": {cmp.Or(s.UserAgent, "hubrelay")}}
	if sink.target().URL().Scheme == "http" {
		s.Log.Warn("url uses http, which exposes the incoming webhook")
	}
	return sink, nil
}

// Deliver posts d once, as one message.
func (s *Sink) Deliver(ctx context.Context, d relay.Delivery) error {
	m, err := s.buildMessage(ctx, d)
	if err != nil {
		return err
	}
	if s.app != nil {
		return s.app.deliverMessage(ctx, d, m)
	}
	body, err := json.Marshal(m)
	if err != nil {
		return relay.Permanent(fmt.Errorf("render delivery %s: %w", d.ID, err))
	}
	target := s.target()
	s.recent.Add(target.Secrets())
	response, err := s.client.Post(ctx, target, s.header, body)
	secrets := s.recent.All() // another attempt may have sent a newer URL
	if err != nil {
		return secrets.Error(err)
	}
	response.Body = secrets.Shorten(response.Body, response.Truncated, httpclient.MaxResponseBody)
	if response.Status == http.StatusOK && !response.Truncated && strings.TrimSpace(response.Body) == "ok" {
		relay.ReportStatus(ctx, response.Status)
		return nil
	}
	return s.classifyResponse(target, response)
}

// classifyResponse returns the outcome of a response other than 200 "ok".
func (s *Sink) classifyResponse(target *httpclient.Target, response *httpclient.Response) error {
	cause := &relay.ResponseError{Status: response.Status, Body: response.Body}
	if response.Status == http.StatusOK {
		return fmt.Errorf("post to %s: %w, but not with ok", target.Host(), cause)
	}
	known := meaningOf(response.Body)
	err := fmt.Errorf("post to %s: %w", target.Host(), cause)
	if known.problem != "" {
		err = fmt.Errorf("post to %s: %w: %s", target.Host(), cause, known.problem)
	}
	if response.Status < 400 || response.Status >= 500 ||
		response.Status == http.StatusRequestTimeout || response.Status == http.StatusTooManyRequests {
		if wait, ok := httpclient.RetryAfter(response.Header, s.now()); ok {
			return relay.RetryAfter(err, wait)
		}
		return err
	}
	switch {
	case known.outcome == relay.OutcomePermanent:
		return relay.Permanent(err)
	case known.outcome == relay.OutcomeGone,
		response.Status == http.StatusNotFound, response.Status == http.StatusGone:
		return relay.Gone(err)
	}
	return relay.Permanent(err)
}

// errorMeaning is the meaning of one of Slack's error codes. The zero value is an unknown code.
type errorMeaning struct {
	outcome relay.Outcome
	problem string
}

// meaningOf parses the body of an error, which is a single word. See "Handling errors" in Slack's page on incoming
// webhooks, and its change log of 17 May 2016.
func meaningOf(body string) errorMeaning {
	gone := func(problem string) errorMeaning { return errorMeaning{relay.OutcomeGone, problem} }
	bad := func(problem string) errorMeaning { return errorMeaning{relay.OutcomePermanent, problem} }
	switch strings.TrimSpace(body) {
	case "no_service", "no_service_id", "no_active_hooks":
		return gone("the incoming webhook is disabled, removed or invalid; create a new one")
	case "invalid_token":
		return gone("the token in the URL of the incoming webhook is invalid; create a new one")
	case "no_team", "team_disabled":
		return gone("the workspace of the incoming webhook does not exist or is disabled")
	case "channel_not_found":
		return gone("the channel of the incoming webhook does not exist")
	case "channel_is_archived":
		return gone("the channel of the incoming webhook is archived")
	case "user_not_found":
		return gone("the user of the incoming webhook does not exist")
	case "action_prohibited", "posting_to_general_channel_denied":
		return gone("an administrator does not allow the incoming webhook to post there")
	case "invalid_payload", "invalid_blocks", "invalid_blocks_format", "invalid_attachments":
		return bad("Slack cannot parse this message")
	case "no_text", "missing_text_or_fallback_or_attachments":
		return bad("Slack finds no text in this message")
	case "too_many_attachments", "msg_too_long", "msg_blocks_too_long":
		return bad("this message is too long for Slack")
	}
	return errorMeaning{}
}

// RateKey identifies the incoming webhook, or the app and its channel, because Slack limits these.
func (s *Sink) RateKey() string {
	if s.app != nil {
		return s.app.rateKey()
	}
	return s.target().Hash()
}

// Close closes idle connections. It may be called twice.
func (s *Sink) Close() error {
	if s.app != nil {
		s.app.transport.CloseIdleConnections()
		return nil
	}
	s.client.Close()
	return nil
}

// Preview returns the request that Deliver would send. It hides the path of the URL, which is the credential.
func (s *Sink) Preview(ctx context.Context, d relay.Delivery) (relay.Preview, error) {
	m, err := s.buildMessage(ctx, d)
	if err != nil {
		return relay.Preview{}, err
	}
	if s.app != nil {
		return s.app.previewRequest(d, m)
	}
	body, err := json.Marshal(m)
	if err != nil {
		return relay.Preview{}, fmt.Errorf("render delivery %s: %w", d.ID, err)
	}
	target := s.target()
	e := relay.Preview{Method: "POST", Target: target.URL().Scheme + "://" + target.Host() + "/…", Payload: body}
	e.Headers = append(e.Headers, relay.Header{Name: "Host", Value: target.Host()})
	for _, name := range slices.Sorted(maps.Keys(s.header)) {
		e.Headers = append(e.Headers, relay.Header{Name: name, Value: s.header.Get(name)})
	}
	e.Headers = append(e.Headers, relay.Header{Name: "Content-Length", Value: strconv.Itoa(len(body))})
	return e, nil
}
