package webhook

import (
	"context"
	"io"
	"maps"
	"net/http"
	"strconv"
	"strings"

	"github.com/hubrelay/hubrelay/internal/httpclient"
	"github.com/hubrelay/hubrelay/internal/redact"
	"github.com/hubrelay/hubrelay/relay"
)

// addDefaultHeaders adds the headers that are not configured.
func addDefaultHeaders(h http.Header, userAgent string, c *Config) {
	if userAgent == "" {
		userAgent = "hubrelay"
	}
	for name, value := range map[string]string{"Content-Type": c.contentType(), "User-Agent": userAgent} {
		if h[name] == nil {
			h[name] = []string{value}
		}
	}
	if c.Format == formatBinary {
		h["ce-specversion"] = []string{"1.0"}
	}
}

// requestHead is the common part of requests until the endpoint or the bearer token changes.
type requestHead struct {
	endpoint *endpoint
	token    string
	batch    bool           // the content type is that of a batch
	secrets  redact.Secrets // texts that errors must not contain
	*httpclient.RequestTemplate
}

// Headers with a value per request, in lower case as in Standard Webhooks, for receivers that compare bytes. The
// headers of the binary mode of CloudEvents follow.
var deliveryHeaders = [...]string{
	"webhook-id", "webhook-timestamp", "webhook-signature", "content-encoding",
	"traceparent", "tracestate",
}

// currentHead returns the head of a request for d.
func (s *Sink) currentHead(token string, d relay.Delivery) *requestHead {
	to := s.endpoint()
	batch := inBatchedMode(s.format, d)
	if h := s.requestHead.Load(); h != nil && h.endpoint == to && h.token == token && h.batch == batch {
		return h
	}
	header := maps.Clone(s.header)
	secrets := to.Secrets()
	if to.basic != "" {
		header["Authorization"] = []string{to.basic}
		secrets = secrets.With(strings.TrimPrefix(to.basic, "Basic "))
	} else if token != "" {
		header["Authorization"] = []string{"Bearer " + token}
		secrets = secrets.With(token)
	}
	secrets = s.recent.Add(secrets).With(s.secretTexts...)
	names := deliveryHeaders[:]
	switch {
	case batch:
		header["Content-Type"] = []string{contentBatch}
		delete(header, "ce-specversion")
	case s.format == formatBinary:
		names = append(names[:len(names):len(names)], binaryNames[:]...)
	}
	h := &requestHead{to, token, batch, secrets, httpclient.NewRequestTemplate(to.url, header, names...)}
	s.requestHead.Store(h)
	return h
}

// buildRequest returns the request for d, and its uncompressed body.
func (s *Sink) buildRequest(
	ctx context.Context, h *requestHead, d relay.Delivery,
) (p *httpclient.Request, payload []byte, err error) {
	var more []string
	switch {
	case h.batch, s.format == formatStructured:
		payload, err = s.events.structuredBody(d)
		err = relay.Permanent(err)
	case s.format == formatBinary:
		more, payload, err = s.events.binaryParts(d)
		err = relay.Permanent(err)
	default:
		payload, err = s.buildBody(ctx, d)
	}
	if err != nil {
		return nil, nil, err
	}
	now := s.now().Unix()
	values := append(make([]string, 0, len(deliveryHeaders)+len(more)), d.ID, strconv.FormatInt(now, 10), "", "", "",
		"")
	if keys := s.signers.allSigners(); len(keys) > 0 {
		values[2] = signatureHeader(keys, d.ID, now, payload)
	}
	if len(d.Notifications) == 1 && d.Digest == nil {
		s.setTraceHeaders(values[4:6], d.Notifications[0])
	}
	sent, compressed, err := s.compressor.compressBody(payload)
	if err != nil {
		return nil, nil, err
	}
	if compressed {
		values[3] = "gzip"
	}
	return &httpclient.Request{
		Head: h.RequestTemplate, Values: append(values, more...), Body: sent, NewConnection: d.Attempt > 1,
	}, payload, nil
}

// setTraceHeaders sets the trace context of a notification, unless these headers are configured.
func (s *Sink) setTraceHeaders(values []string, n relay.Notification) {
	if s.operatorHeaders["Traceparent"] || s.operatorHeaders["Tracestate"] {
		return
	}
	t := n.Trace()
	values[0], values[1] = t.Parent, t.State
}

// bearerToken returns the current bearer token, or an empty string.
func (s *Sink) bearerToken(ctx context.Context) (string, error) {
	if s.tokens != nil {
		return s.tokens.get(ctx)
	}
	return s.bearer(), nil
}

// Deliver posts d once. It rejects a delivery of several notifications that is neither digest nor batch. If the
// receiver rejects the token or a compressed body, the request is repeated once with another token or uncompressed.
func (s *Sink) Deliver(ctx context.Context, d relay.Delivery) error {
	token, err := s.bearerToken(ctx)
	if err != nil {
		return err
	}
	again, err := s.postOnce(ctx, token, d)
	if again == nil {
		return err
	}
	if token, err = again(); err != nil {
		return err
	}
	_, err = s.postOnce(ctx, token, d)
	return err
}

// postOnce makes one request. If another request may succeed, again returns its bearer token.
func (s *Sink) postOnce(ctx context.Context, token string, d relay.Delivery) (again func() (string, error), err error) {
	h := s.currentHead(token, d)
	p, _, err := s.buildRequest(ctx, h, d)
	if err != nil {
		return nil, err
	}
	resp, err := s.transports.currentTransport().Post(ctx, p)
	if err != nil {
		return nil, s.networkError(ctx, h, err)
	}
	defer func() { _ = resp.Body.Close() }()
	switch {
	case resp.StatusCode >= 200 && resp.StatusCode < 300:
		relay.ReportStatus(ctx, resp.StatusCode)
		if s.tokens != nil {
			s.tokens.acceptToken(token)
		}
		// The receiver has accepted it. Errors in the rest of the response change nothing.
		if resp.Body != http.NoBody {
			_, _ = io.CopyN(io.Discard, resp.Body, keptResponse+drainedResponse)
		}
		return nil, nil
	case resp.StatusCode == http.StatusUnsupportedMediaType && p.Values[3] != "":
		if s.compressor.pauseCompression() {
			s.log.Warn("destination rejects compressed bodies (415), sending uncompressed ones for an hour", "host",
				h.endpoint.Host())
		}
		again = func() (string, error) { return token, nil }
	case resp.StatusCode == http.StatusUnauthorized && s.tokens != nil:
		if getOther := s.tokens.rejectToken(token); getOther != nil {
			again = func() (string, error) { return getOther(ctx) }
		}
	}
	return again, s.classifyResponse(h, resp)
}
