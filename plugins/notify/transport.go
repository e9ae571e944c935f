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

	"github.com/hubrelay/hubrelay/internal/netguard"
)

const (
	dialTime  = 10 * time.Second
	maxAnswer = 1 << 20
	maxWait   = 24 * time.Hour
)

var (
	errNoAttempt = errors.New("nothing is being delivered")
	errOnce      = errors.New("it was answered already; nothing is repeated within an attempt")
)

// Transport is the way out of the whole process. What shoutrrr asks belongs to the one attempt under way.
type Transport struct {
	next http.RoundTripper // guarded

	mu      sync.Mutex
	current *attempt
}

// attempt is one destination asked once.
type attempt struct {
	ctx context.Context

	mu        sync.Mutex
	requested bool
	status    int // of the answer that ended it; zero while all was well
	body      []byte
	wait      time.Duration
	err       error // of the connection
}

// guardedTransport dials what the guard lets through.
func guardedTransport(g *netguard.Guard) http.RoundTripper {
	return &http.Transport{
		DialContext:         (&net.Dialer{Timeout: dialTime, Control: g.Control}).DialContext,
		TLSHandshakeTimeout: dialTime, IdleConnTimeout: time.Minute, ForceAttemptHTTP2: true, MaxResponseHeaderBytes: 64 << 10,
	}
}

// setNext has requests go by next, and returns by what they went before.
func (t *Transport) setNext(next http.RoundTripper) (before http.RoundTripper) {
	t.mu.Lock()
	defer t.mu.Unlock()
	before, t.next = t.next, next
	return before
}

// beginAttempt makes a the attempt to which requests belong, until end.
func (t *Transport) beginAttempt(a *attempt) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.current = a
}

func (t *Transport) endAttempt() { t.beginAttempt(nil) }

// RoundTrip makes a request within the attempt. Behind an answer that is no success there are no more.
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
		return nil, errOnce
	}
	a.requested = true
	answer, err := next.RoundTrip(r.WithContext(a.ctx))
	if err != nil {
		a.err = err
		return nil, err
	}
	body, err := io.ReadAll(io.LimitReader(answer.Body, maxAnswer))
	if err := errors.Join(err, answer.Body.Close()); err != nil {
		a.err = err
		return nil, err
	}
	answer.Body = io.NopCloser(bytes.NewReader(body))
	if answer.StatusCode >= http.StatusMultipleChoices {
		a.status, a.body, a.wait = answer.StatusCode, body, retryAfter(answer.Header)
	}
	return answer, nil
}

// retryAfter is the time that the far side names in seconds, as all these services do.
func retryAfter(h http.Header) time.Duration {
	seconds, err := strconv.ParseFloat(h.Get("Retry-After"), 64)
	if err != nil || seconds <= 0 {
		return 0
	}
	return min(time.Duration(min(seconds, maxWait.Seconds())*float64(time.Second)), maxWait)
}
