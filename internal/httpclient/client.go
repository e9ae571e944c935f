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
	"slices"
	"strings"

	"github.com/hubrelay/hubrelay/internal/netguard"
)

const (
	// MaxResponseBody is how much of an answer is kept, in bytes, as relay.AnswerError shows it.
	MaxResponseBody = 1 << 10
	// maxDrainedBody is how much more is read so that the connection can be used again; a longer answer closes it.
	maxDrainedBody = 64 << 10
)

// Client posts to targets through a guard. It may be used concurrently.
type Client struct {
	transport *Transport
}

// NewClient returns a Client that dials what g lets through. tlsConfig may be nil.
func NewClient(g *netguard.Guard, tlsConfig *tls.Config) *Client {
	return &Client{transport: NewTransport(g, tlsConfig)}
}

// Response is what the far side said.
type Response struct {
	Status int
	Header http.Header
	// Body is the beginning of the answer, at most [MaxResponseBody] bytes, valid UTF-8, without the target's secret parts.
	Body string
	// Truncated says that the answer was longer than Body, or broke off.
	Truncated bool
}

// Post sends body once and returns the answer, whatever its status; redirects are not followed. It blocks until the
// answer is there or ctx ends. Its errors name the target's host and nothing else of the URL.
func (c *Client) Post(ctx context.Context, t *Target, header http.Header, body []byte) (*Response, error) {
	resp, err := c.transport.Post(ctx, &Request{Head: NewRequestTemplate(t.URL(), header.Clone()), Body: body})
	if err != nil {
		return nil, t.RedactError(ctx, err)
	}
	defer func() { _ = resp.Body.Close() }()
	answer := &Response{Status: resp.StatusCode, Header: resp.Header}
	if resp.StatusCode == http.StatusSwitchingProtocols {
		// Its body is the bare connection, and reading that would not end with ctx.
		return answer, nil
	}
	answer.Body, answer.Truncated = t.ReadResponse(resp.Body)
	return answer, nil
}

// Close closes idle connections. It may be called twice.
func (c *Client) Close() { c.transport.CloseIdleConnections() }

// ReadResponse keeps the beginning of an answer, as [Response] shows it, without the target's secret parts and without the
// others, and reads on so that the connection can be used again.
func (t *Target) ReadResponse(body io.Reader, others ...string) (kept string, cut bool) {
	hidden := t.secrets
	if len(others) > 0 {
		// The longest first, whosever it is: a short part must not break up a long one.
		hidden = sortBySize(append(slices.Clone(hidden), others...))
	}
	ahead := 0
	if len(hidden) > 0 {
		ahead = len(hidden[0])
	}
	// A secret that begins in what is kept is read to its end, so that it is recognised.
	limit := MaxResponseBody + ahead
	raw, err := io.ReadAll(io.LimitReader(body, int64(limit)))
	cut = err != nil || len(raw) > MaxResponseBody
	if err == nil && len(raw) == limit {
		n, _ := io.CopyN(io.Discard, body, maxDrainedBody)
		cut = cut || n > 0
	}
	text := redact(strings.ToValidUTF8(string(raw), ""), hidden)
	if cut {
		text = redactTail(text, hidden)
	}
	if len(text) > MaxResponseBody {
		text = strings.ToValidUTF8(text[:MaxResponseBody], "")
	}
	return text, cut
}

// RedactError makes of what RoundTrip returned an error that names the host and nothing else of the URL. ctx is the request's.
func (t *Target) RedactError(ctx context.Context, err error) error {
	var wrapped *url.Error
	if errors.As(err, &wrapped) {
		err = wrapped.Err
	}
	if dial := (*net.OpError)(nil); errors.As(err, &dial) && dial.Op == "dial" {
		// It comes from this machine, and the far side has no say in it: the words it shares with the URL are chance.
		return fmt.Errorf("post to %s: %w", t.Host(), err)
	}
	switch {
	// What replaces these is ours and has no secret in it.
	case errors.Is(err, context.DeadlineExceeded):
		said := &describedError{"no answer in time", err}
		if late := context.Cause(ctx); errors.Is(late, context.DeadlineExceeded) && late.Error() != context.DeadlineExceeded.Error() {
			said.text = late.Error()
		}
		return fmt.Errorf("post to %s: %w", t.Host(), said)
	case errors.Is(err, io.EOF):
		return fmt.Errorf("post to %s: %w", t.Host(), &describedError{"closed the connection without an answer", err})
	}
	if text := err.Error(); t.Redact(text) != text {
		return fmt.Errorf("post to %s: the connection failed (details left out, since they repeat the url)", t.Host())
	}
	return fmt.Errorf("post to %s: %w", t.Host(), err)
}

// describedError says for people what a library says in its own words, and still is what it was.
type describedError struct {
	text string
	err  error
}

func (e *describedError) Error() string { return e.text }
func (e *describedError) Unwrap() error { return e.err }
