package notify

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/hubrelay/hubrelay/internal/httpclient"
	"github.com/hubrelay/hubrelay/internal/netguard"
)

const (
	dialTimeout     = 10 * time.Second
	maxResponseBody = 1 << 20
	maxRetryAfter   = 24 * time.Hour
)

var (
	errNoAttempt = errors.New("there is no attempt in progress")
	errFailed    = errors.New("the attempt has failed already, and requests are not retried within an attempt")
)

// Transport sends all requests of the process. A request of shoutrrr belongs to the attempt in progress, because
// shoutrrr passes no context.
type Transport struct {
	next http.RoundTripper // has the address guard

	mu      sync.Mutex
	current *attempt
}

// attempt sends one message to one destination, which may need several requests.
type attempt struct {
	ctx context.Context

	mu        sync.Mutex
	requested bool
	status    int // of the response that failed the attempt, or 0
	body      []byte
	wait      time.Duration
	err       error // of the connection
}

// guardedTransport dials only addresses that the guard permits.
func guardedTransport(g *netguard.Guard) http.RoundTripper {
	return httpclient.UpgradeRejecter{RoundTripper: &http.Transport{
		DialContext:         (&net.Dialer{Timeout: dialTimeout, Control: g.Control}).DialContext,
		TLSHandshakeTimeout: dialTimeout, IdleConnTimeout: time.Minute,
		ForceAttemptHTTP2: true, MaxResponseHeaderBytes: 64 << 10,
	}}
}

// setNext replaces the transport that sends the requests, and returns the previous one.
func (t *Transport) setNext(next http.RoundTripper) (previous http.RoundTripper) {
	t.mu.Lock()
	defer t.mu.Unlock()
	previous, t.next = t.next, next
	return previous
}

// beginAttempt assigns all requests to a, until endAttempt.
func (t *Transport) beginAttempt(a *attempt) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.current = a
}

func (t *Transport) endAttempt() { t.beginAttempt(nil) }

// RoundTrip implements http.RoundTripper. It sends a request of the current attempt. After a response that is not a
// success, it rejects further requests.
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	t.mu.Lock()
	a, next := t.current, t.next
	t.mu.Unlock()
	if a == nil || next == nil {
		return nil, errNoAttempt
	}
	return a.roundTrip(next, r)
}

func (a *attempt) roundTrip(next http.RoundTripper, r *http.Request) (*http.Response, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.status != 0 || a.err != nil {
		return nil, errFailed
	}
	a.requested = true
	response, err := next.RoundTrip(r.WithContext(a.ctx))
	if err != nil {
		a.err = err
		return nil, err
	}
	body, err := io.ReadAll(io.LimitReader(response.Body, maxResponseBody))
	if err := errors.Join(err, response.Body.Close()); err != nil {
		a.err = err
		return nil, err
	}
	response.Body = io.NopCloser(bytes.NewReader(body))
	if response.StatusCode >= http.StatusMultipleChoices {
		a.status, a.body, a.wait = response.StatusCode, body, parseRetryAfter(response.Header)
	}
	return response, nil
}

// parseRetryAfter returns the value of Retry-After, or 0. All these services send seconds, not a date.
func parseRetryAfter(h http.Header) time.Duration {
	seconds, err := strconv.ParseFloat(h.Get("Retry-After"), 64)
	if err != nil || seconds <= 0 {
		return 0
	}
	return min(time.Duration(min(seconds, maxRetryAfter.Seconds())*float64(time.Second)), maxRetryAfter)
}
