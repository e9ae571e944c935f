// Package pagerduty sends notifications to PagerDuty's Events API v2
// (https://developer.pagerduty.com/docs/events-api-v2-overview). A problem triggers an alert, and a recovery resolves
// it.
//
// It makes one attempt and classifies the response. Retries, rates, digests and dead letters belong to
// relay/internal/delivery. It imports no other sink.
package pagerduty

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"strconv"
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

// Kind describes the sink type pagerduty.
func Kind() relay.SinkKind {
	return relay.SinkKind{
		Type:   "pagerduty",
		Config: func() relay.Config { return &Config{URL: endpoint, Severity: "error"} },
		// "Events API rate limits" in PagerDuty's documentation: about 120 events a minute for each integration key.
		Rate: relay.Rate{Count: 120, Per: time.Minute},
		Open: relay.OpenAs("pagerduty sink", open),
	}
}

// Sink posts to one service. Deliver may be called concurrently.
type Sink struct {
	client    *httpclient.Client
	target    *httpclient.Target
	key       func() string
	recent    redact.Recent // routing keys
	severity  string
	templates *tmpl.Set
	header    http.Header
	now       func() time.Time
}

func open(s relay.SinkSettings, c *Config) (*Sink, error) {
	if err := c.validate(); err != nil {
		return nil, err
	}
	g, err := netguard.New(c.AllowCIDRs)
	if err != nil {
		return nil, err
	}
	sink := &Sink{client: httpclient.NewClient(g, nil), severity: c.Severity, now: time.Now}
	if sink.target, err = httpclient.ParseTarget(c.URL, g); err != nil {
		return nil, err
	}
	if samples := s.Samples; samples != nil {
		s.Samples = func() []relay.Delivery { return c.alertSamples(samples()) }
	}
	if sink.templates, err = c.templates().Open(s); err != nil {
		return nil, err
	}
	if sink.key, err = c.keySetting().Open(s.Log, time.Now); err != nil {
		return nil, err
	}
	sink.header = http.Header{"Content-Type": {"application/json"}, "User-Agent": {cmp.Or(s.UserAgent, "hubrelay")}}
	return sink, nil
}

// Deliver posts d as one event. It sends nothing for a notification that is neither a problem nor a recovery.
func (s *Sink) Deliver(ctx context.Context, d relay.Delivery) error {
	e, err := s.buildEvent(ctx, d)
	switch {
	case err != nil:
		return err
	case e == nil:
		return context.Cause(ctx)
	}
	e.RoutingKey = s.key()
	body, err := e.encode("")
	if err != nil {
		return relay.Permanent(err)
	}
	s.recent.Add(redact.New(e.RoutingKey))
	response, err := s.client.Post(ctx, s.target, s.header, body)
	if err != nil {
		return s.recent.All().Error(err)
	}
	if response.Status == http.StatusAccepted {
		relay.ReportStatus(ctx, response.Status)
		return nil
	}
	return s.classifyResponse(response, s.recent.All())
}

// classifyResponse returns the outcome of a response other than 202, by "Response codes & retry logic" in PagerDuty's
// documentation: 400 is an invalid event, 429 too many requests, and 5xx a fault of PagerDuty.
func (s *Sink) classifyResponse(response *httpclient.Response, secrets redact.Secrets) error {
	body := secrets.Shorten(response.Body, response.Truncated, httpclient.MaxResponseBody)
	said := &relay.ResponseError{Status: response.Status, Body: body}
	err := fmt.Errorf("post to %s: %w", s.target.Host(), said)
	if response.Status == http.StatusBadRequest {
		return relay.Permanent(err)
	}
	if wait, ok := httpclient.RetryAfter(response.Header, s.now()); ok {
		return relay.RetryAfter(err, wait)
	}
	return err
}

// Preview returns the event without the key.
func (s *Sink) Preview(ctx context.Context, d relay.Delivery) (relay.Preview, error) {
	e, err := s.buildEvent(ctx, d)
	if err != nil {
		return relay.Preview{}, err
	}
	if e == nil {
		return relay.Preview{
			Method: "nothing", Target: "is sent: this is neither a problem nor a recovery",
			Payload: []byte("{}"),
		}, nil
	}
	e.RoutingKey = "(hidden)"
	body, err := e.encode("  ")
	if err != nil {
		return relay.Preview{}, err
	}
	out := relay.Preview{
		Method: "POST", Target: s.target.URL().Scheme + "://" + s.target.Host() + s.target.URL().Path, Payload: body,
	}
	for _, name := range []string{"Content-Type", "User-Agent"} {
		out.Headers = append(out.Headers, relay.Header{Name: name, Value: s.header.Get(name)})
	}
	out.Headers = append(out.Headers, relay.Header{Name: "Host", Value: s.target.Host()},
		relay.Header{Name: "Content-Length", Value: strconv.Itoa(len(body))})
	return out, nil
}

// RateKey identifies the integration key, because PagerDuty limits its rate.
func (s *Sink) RateKey() string { return s.target.Hash() + "/" + hashKey(s.key()) }

// Close closes idle connections. It may be called twice.
func (s *Sink) Close() error {
	s.client.Close()
	return nil
}
