// Package httpclient is the HTTP client shared by all sinks, because sinks never import each other. It has a guarded
// transport that follows no redirects and uses no proxy. It limits the length of responses, removes the secret parts of
// a URL from errors, and reads settings from the configuration or from files that are reloaded when they change.
//
// Nothing that belongs to one sink goes in here: no payloads and no interpretation of status codes. Retries, schedules
// and rate limits belong to relay/internal/delivery.
package httpclient

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/hubrelay/hubrelay/internal/netguard"
	"github.com/hubrelay/hubrelay/internal/redact"
)

const (
	// MaxResponseBody is the maximum size of a stored response body, in bytes. [relay.ResponseError] has the same
	// limit.
	MaxResponseBody = 1 << 10
	// maxDrainedBody is the maximum number of further bytes that are read to make the connection reusable. The
	// connection of a longer response is closed.
	maxDrainedBody = 64 << 10
)

// Client sends POST requests to targets whose addresses a guard allows. It is safe for concurrent use.
type Client struct {
	transport *Transport
}

// NewClient returns a Client that dials only addresses allowed by g. tlsConfig may be nil.
func NewClient(g *netguard.Guard, tlsConfig *tls.Config) *Client {
	return &Client{transport: NewTransport(g, tlsConfig)}
}

// Response is the response of the remote server.
type Response struct {
	Status int
	Header http.Header
	// Body is the start of the response body: at most [MaxResponseBody] bytes of valid UTF-8 without secrets.
	Body string
	// Truncated reports whether the response was longer than Body or ended early.
	Truncated bool
}

// Post sends body once and returns the response, whatever its status. It does not follow redirects. It blocks until the
// response arrives or ctx ends. Its errors and the body of the response contain no part of the URL except the host.
func (c *Client) Post(ctx context.Context, t *Target, header http.Header, body []byte) (*Response, error) {
	resp, err := c.transport.Post(ctx, &Request{Head: NewRequestTemplate(t.URL(), header.Clone()), Body: body})
	if err != nil {
		return nil, t.RedactError(ctx, err, t.secrets)
	}
	defer func() { _ = resp.Body.Close() }()
	result := &Response{Status: resp.StatusCode, Header: resp.Header}
	result.Body, result.Truncated = ReadResponse(resp.Body, t.secrets)
	return result, nil
}

// Close closes idle connections. It may be called twice.
func (c *Client) Close() { c.transport.CloseIdleConnections() }

// ReadResponse returns the start of a response body as described at [Response], without secrets. It then drains a limited part
// of the rest to make the connection reusable.
func ReadResponse(body io.Reader, secrets redact.Secrets) (text string, truncated bool) {
	// A secret that starts before the limit is read to its end. Otherwise it would not be recognized.
	limit := MaxResponseBody + secrets.MaxLength()
	raw, err := io.ReadAll(io.LimitReader(body, int64(limit)))
	truncated = err != nil || len(raw) > MaxResponseBody
	if err == nil && len(raw) == limit {
		n, _ := io.CopyN(io.Discard, body, maxDrainedBody)
		truncated = truncated || n > 0
	}
	return secrets.Shorten(string(raw), truncated, MaxResponseBody), truncated
}

// WithoutURL returns the cause of an error of http.Client, which does not contain the URL.
func WithoutURL(err error) error {
	var wrapped *url.Error
	if errors.As(err, &wrapped) {
		return wrapped.Err
	}
	return err
}

// RedactError converts an error of RoundTrip to one that contains the host and none of the secrets. They must include
// [Target.Secrets]. ctx is the context of the request.
func (t *Target) RedactError(ctx context.Context, err error, secrets redact.Secrets) error {
	err = WithoutURL(err)
	if dial := (*net.OpError)(nil); errors.As(err, &dial) && dial.Op == "dial" {
		// The error comes from this machine and contains nothing that the server sent. If it shares words with the URL,
		// that is a coincidence.
		return fmt.Errorf("post to %s: %w", t.Host(), err)
	}
	switch {
	// The texts that replace these errors are defined here and contain no secrets.
	case errors.Is(err, context.DeadlineExceeded):
		described := &describedError{"no response in time", err}
		cause := context.Cause(ctx)
		if errors.Is(cause, context.DeadlineExceeded) && cause.Error() != context.DeadlineExceeded.Error() {
			described.text = cause.Error()
		}
		return fmt.Errorf("post to %s: %w", t.Host(), described)
	case errors.Is(err, io.EOF):
		return fmt.Errorf("post to %s: %w", t.Host(), &describedError{"closed the connection without a response", err})
	}
	return fmt.Errorf("post to %s: %w", t.Host(), secrets.Error(err))
}

// describedError replaces the text of a library's error with a clear one. errors.Is still matches the original error.
type describedError struct {
	text string
	err  error
}

func (e *describedError) Error() string { return e.text }
func (e *describedError) Unwrap() error { return e.err }

// MaxRetryAfter is the maximum result of [RetryAfter]. relay/internal/delivery has a lower limit.
const MaxRetryAfter = 365 * 24 * time.Hour

// RetryAfter parses the Retry-After header: seconds or an HTTP date (RFC 9110, section 10.2.3). The result is between 0
// and [MaxRetryAfter]. It returns false if the header is missing or invalid.
func RetryAfter(h http.Header, now time.Time) (time.Duration, bool) {
	value := strings.TrimSpace(h.Get("Retry-After"))
	if value == "" {
		return 0, false
	}
	if seconds, err := strconv.ParseUint(value, 10, 64); err == nil || errors.Is(err, strconv.ErrRange) {
		if seconds > uint64(MaxRetryAfter/time.Second) {
			return MaxRetryAfter, true
		}
		return time.Duration(seconds) * time.Second, true
	}
	at, err := http.ParseTime(value)
	if err != nil {
		return 0, false
	}
	return min(max(at.Sub(now), 0), MaxRetryAfter), true
}
