package webhook

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/relay"
)

// A receiver that refuses every token costs the endpoint one now and then, not one for each attempt.
func TestTokensAreRefused(t *testing.T) {
	t.Parallel()
	e := newEndpoint(t, nil)
	s, a := oauthSink(t, e, nil)
	start := time.Now()
	var ahead atomic.Int64
	s.tokens.now = func() time.Time { return start.Add(time.Duration(ahead.Load())) }
	a.refused["*"] = true
	for i, c := range []struct {
		later time.Duration
		seen  string
	}{
		{0, "token-1 token-2"},
		{0, "token-2"},
		{minRefetchDelay - 1, "token-2"},
		{1, "token-2 token-3"},
		{2*minRefetchDelay - 1, "token-3"},
		{1, "token-3 token-4"},
		{2 * minRefetchDelay, "token-4"},
		{24 * time.Hour, "token-5 token-6"},
	} {
		ahead.Add(int64(c.later))
		err := s.Deliver(t.Context(), sampled)
		var answer *relay.ResponseError
		if outcome, _ := relay.Classify(err); outcome != relay.OutcomeRetry || !errors.As(err, &answer) ||
			answer.Status != 401 || strings.Contains(answer.Body, "token-") {
			t.Errorf("attempt %d: %v", i, err)
		}
		if got := a.took(); got != c.seen {
			t.Errorf("attempt %d: seen %s, want %s", i, got, c.seen)
		}
	}
	// One that is taken ends the wait, but for the least.
	clear(a.refused)
	if err := s.Deliver(t.Context(), sampled); err != nil || a.took() != "token-6" {
		t.Error(err)
	}
	ahead.Add(int64(maxRefetchDelay))
	for _, want := range []string{"token-6 token-7", "token-7 token-8"} {
		a.refused[want[:len("token-0")]] = true
		if err := s.Deliver(t.Context(), sampled); err != nil || a.took() != want {
			t.Errorf("%v, want %s", err, want)
		}
		ahead.Add(int64(minRefetchDelay))
	}
}

// If the destination rejects the token for one event while the endpoint fails, other events still use the token. It is replaced
// once the endpoint works again.
func TestTokenIsRejectedWhileEndpointFails(t *testing.T) {
	t.Parallel()
	var isDown atomic.Bool
	var issued atomic.Int64
	e := newEndpoint(t, func(w http.ResponseWriter, _ *http.Request) {
		if isDown.Load() {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = fmt.Fprintf(w, `{"access_token":"token-%d","token_type":"Bearer"}`, issued.Add(1))
	})
	s, a := oauthSink(t, e, nil)
	start := time.Now()
	var ahead atomic.Int64
	s.tokens.now = func() time.Time { return start.Add(time.Duration(ahead.Load())) }
	if err := s.Deliver(t.Context(), sampled); err != nil || a.took() != "token-1" {
		t.Fatal(err)
	}
	isDown.Store(true)
	for range 3 {
		a.refused["*"] = true
		if outcome, _ := relay.Classify(s.Deliver(t.Context(), sampled)); outcome != relay.OutcomeRetry {
			t.Errorf("the rejected event: got outcome %v, want retry", outcome)
		}
		clear(a.refused)
		if err := s.Deliver(t.Context(), sampled); err != nil {
			t.Errorf("another event: %v", err)
		}
		if seen := a.took(); seen != "token-1 token-1" {
			t.Errorf("the receiver has seen %s, want token-1 twice", seen)
		}
		ahead.Add(int64(errorRetryInterval))
	}
	isDown.Store(false)
	a.refused["token-1"] = true
	if err := s.Deliver(t.Context(), sampled); err != nil || a.took() != "token-1 token-2" {
		t.Errorf("the endpoint works again: %v", err)
	}
}

// Retry-After of the endpoint applies to all attempts, including those with a token.
func TestTokenEndpointIsBusy(t *testing.T) {
	t.Parallel()
	var asked atomic.Int64
	var busy, header atomic.Value
	busy.Store(http.StatusServiceUnavailable)
	header.Store("120")
	e := newEndpoint(t, func(w http.ResponseWriter, _ *http.Request) {
		n := asked.Add(1)
		if status := busy.Load().(int); status != http.StatusOK { //nolint:errcheck // it is an int
			w.Header().Set("Retry-After", header.Load().(string)) //nolint:errcheck // it is a string
			w.WriteHeader(status)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = fmt.Fprintf(w, `{"access_token":"token-%d","token_type":"Bearer","expires_in":3600}`, n)
	})
	s, a := oauthSink(t, e, nil)
	start := time.Now()
	var ahead atomic.Int64
	s.tokens.now = func() time.Time { return start.Add(time.Duration(ahead.Load())) }
	for _, c := range []struct {
		later  time.Duration
		status int
		says   string
		wait   time.Duration // 0 where the attempt succeeds
		asked  int64
	}{
		{0, 503, "120", 2 * time.Minute, 1},
		{time.Minute, 503, "120", time.Minute, 1},
		{time.Minute, 429, "31536000", maxRetryAfter, 2},
		{maxRetryAfter - 1, 429, "", 1, 2},
		{1, 200, "", 0, 3},
		// Still good, but to be replaced.
		{59*time.Minute + 30*time.Second, 503, "60", 0, 4},
		{20 * time.Second, 200, "", 0, 4},
		// It has ended, and the endpoint wants to be left alone.
		{10 * time.Second, 200, "", 30 * time.Second, 4},
		{30 * time.Second, 200, "", 0, 5},
	} {
		busy.Store(c.status)
		header.Store(c.says)
		ahead.Add(int64(c.later))
		err := s.Deliver(t.Context(), sampled)
		s.tokens.busy.Wait()
		if _, wait := relay.Classify(err); (err == nil) != (c.wait == 0) || wait != c.wait ||
			asked.Load() != c.asked || (a.took() == "") != (err != nil) {
			t.Errorf("%+v: asked %d times, to wait for %s: %v", c, asked.Load(), wait, err)
		}
		// The answer tells relay/internal/delivery to leave the whole sink alone.
		var answer *relay.ResponseError
		if err != nil && (!strings.Contains(err.Error(), "get a token from 127.0.0.1:") || !errors.As(err, &answer) ||
			answer.Status != 503 && answer.Status != 429) {
			t.Errorf("%v", err)
		}
	}
	// A refused token stays while no other can be had: what is wrong may be the receiver's.
	busy.Store(503)
	header.Store("60")
	ahead.Add(int64(59*time.Minute + 30*time.Second))
	if err := s.Deliver(t.Context(), sampled); err != nil {
		t.Fatal(err)
	}
	s.tokens.busy.Wait()
	a.took()
	a.refused["*"] = true
	var answer *relay.ResponseError
	if err := s.Deliver(t.Context(), sampled); !errors.As(err, &answer) || answer.Status != 401 ||
		a.took() != "token-5" || asked.Load() != 6 {
		t.Errorf("asked %d times: %v", asked.Load(), err)
	}
}

// An endpoint that fails without Retry-After receives at most one request per second.
func TestTokenEndpointIsDown(t *testing.T) {
	t.Parallel()
	var asked atomic.Int64
	e := newEndpoint(t, func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		w.WriteHeader(http.StatusInternalServerError)
	})
	s, _ := oauthSink(t, e, nil)
	start := time.Now()
	var ahead atomic.Int64
	s.tokens.now = func() time.Time { return start.Add(time.Duration(ahead.Load())) }
	for i, want := range []int64{1, 1, 2} {
		if err := s.Deliver(t.Context(), sampled); err == nil || !strings.Contains(err.Error(), "it responded with status 500") ||
			asked.Load() != want {
			t.Errorf("attempt %d: asked %d times: %v", i, asked.Load(), err)
		}
		ahead.Add(int64(errorRetryInterval)/2 + 1)
	}
}

// A token that expires at once is used briefly anyway. Otherwise each attempt would fetch one.
func TestTokenWithoutALife(t *testing.T) {
	t.Parallel()
	e := newEndpoint(t, nil)
	e.expires = -5
	s, a := oauthSink(t, e, nil)
	start := time.Now()
	s.tokens.now = func() time.Time { return start }
	for range 3 {
		if err := s.Deliver(t.Context(), sampled); err != nil || a.took() != "token-1" {
			t.Error(err)
		}
	}
}

// lastMoment is a context that ends when the endpoint has answered, while a caller starts to wait for both.
type lastMoment struct {
	context.Context
	tokens *tokenSource
}

func (l lastMoment) Done() <-chan struct{} {
	for running := true; running; {
		time.Sleep(time.Millisecond)
		l.tokens.mu.Lock()
		running = l.tokens.inFlight != nil
		l.tokens.mu.Unlock()
	}
	ended := make(chan struct{})
	close(ended)
	return ended
}

// The endpoint's answer is used even if the time ends at the same moment. Go selects randomly, so this is tried often.
func TestTokenAtTheLastMoment(t *testing.T) {
	t.Parallel()
	e := newEndpoint(t, nil)
	s, _ := oauthSink(t, e, func(o *OAuth2) { o.ClientSecret = "another" })
	for range 20 {
		if text, err := s.tokens.get(lastMoment{t.Context(), s.tokens}); err == nil ||
			!strings.Contains(err.Error(), "status 401") {
			t.Fatalf("%q, %v", text, err)
		}
		s.tokens.mu.Lock()
		s.tokens.retryAt = time.Time{}
		s.tokens.mu.Unlock()
	}
}
