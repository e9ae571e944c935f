package clients

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/gorilla/websocket"

	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay"
)

// refusal dials and returns the answer's status and Retry-After; 101 where the client was let in.
func (n *node) refusal(t *testing.T, query string) (status, retry int) {
	t.Helper()
	conn, answer, err := n.dialer().Dial(n.url(query), nil)
	if answer == nil {
		t.Fatalf("dial %s: %v", query, err)
	}
	_ = answer.Body.Close()
	if err == nil {
		t.Cleanup(func() { _ = conn.Close() })
	}
	retry, _ = strconv.Atoi(answer.Header.Get("Retry-After"))
	return answer.StatusCode, retry
}

func TestLimits(t *testing.T) {
	t.Parallel()
	var admitted atomic.Int32
	n := startNode(t, Options{Limits: Limits{Node: 5, Hub: 2, Key: 3}}, func(s *Subscription) {
		s.Admit = func(context.Context, func()) *relay.Error { admitted.Add(1); return nil }
	})
	first := n.dial(t, "hub=h1&key=a")
	for i, step := range []struct {
		query  string
		status int
		limit  Limit
	}{
		{"hub=h1&key=a", http.StatusSwitchingProtocols, ""},
		{"hub=h1&key=b", http.StatusTooManyRequests, LimitHub},
		{"hub=h2&key=a", http.StatusSwitchingProtocols, ""},
		{"hub=h3&key=a", http.StatusTooManyRequests, LimitKey},
		{"account=x&key=b", http.StatusSwitchingProtocols, ""},
		{"account=x&key=b", http.StatusSwitchingProtocols, ""},
		{"account=x&key=c", http.StatusServiceUnavailable, LimitNode},
	} {
		status, retry := n.refusal(t, step.query)
		if status != step.status {
			t.Fatalf("step %d, %s: %d, want %d", i, step.query, status, step.status)
		}
		if step.limit == "" {
			continue
		}
		if got := <-n.away; got != step.limit {
			t.Errorf("step %d: limit %q, want %q", i, got, step.limit)
		}
		if retry < minRetryAfter || retry >= minRetryAfter+retryAfterJitter {
			t.Errorf("step %d: Retry-After %d", i, retry)
		}
	}
	if got := admitted.Load(); got != 5 {
		t.Errorf("%d tokens were used up, want 5", got)
	}
	_ = first.Close()
	n.wantEnding(t, ClosedByClient)
	testkit.WaitForValue(t, "the place to be free", 4, n.taken)
	if status, _ := n.refusal(t, "hub=h1&key=b"); status != http.StatusSwitchingProtocols {
		t.Errorf("after one has gone: %d", status)
	}
}

func TestLimits_ErrorNamesLimit(t *testing.T) {
	t.Parallel()
	s := New(Options{Limits: Limits{Hub: 1, Key: 1, Account: 1}})
	first := &Subscription{Hub: "h", Key: "k", Account: "a"}
	lease, err := s.reserveLease(http.Header{}, first)
	if err != nil {
		t.Fatal(err)
	}
	for per, sub := range map[string]Subscription{
		"hub": {Hub: "h", Key: "other", Account: "b"}, "key": {Hub: "other", Key: "k", Account: "a"},
		"account": {Hub: "other", Key: "other", Account: "a"},
	} {
		_, err := s.reserveLease(http.Header{}, &sub)
		if err == nil || err.Code != relay.CodeRateLimiting || err.Extra["limit"] != 1 || err.Extra["per"] != per {
			t.Errorf("%s: got %v", per, err)
		}
	}
	// Keys of all accounts, and of none, have no limit per account.
	for i, account := range []string{anyAccount, anyAccount, "", ""} {
		unlimited, err := s.reserveLease(http.Header{}, &Subscription{Key: fmt.Sprint("key ", i), Account: account})
		if err != nil {
			t.Fatalf("account %q: %v", account, err)
		}
		defer unlimited.release()
	}
	lease.release()
	lease.release()
	again, err := s.reserveLease(http.Header{}, first)
	if err != nil {
		t.Fatal(err)
	}
	again.release()
	if l := s.limits; l.taken != 4 || len(l.hubs)+len(l.accounts) != 0 || len(l.keys) != 4 {
		t.Errorf("left: %+v", l)
	}
}

// Many arrive at once, and some upgrades fail: never are more let in than may be, and every place comes back.
func TestLimits_Concurrent(t *testing.T) {
	t.Parallel()
	const limit, rounds, crowd = 7, 6, 40
	var inside, most atomic.Int32
	n := startNode(t, Options{Limits: Limits{Hub: limit}}, func(s *Subscription) {
		s.Admit = func(context.Context, func()) *relay.Error {
			now := inside.Add(1)
			for m := most.Load(); now > m; m = most.Load() {
				if most.CompareAndSwap(m, now) {
					break
				}
			}
			if now%3 == 0 {
				inside.Add(-1)
				return relay.NewError(relay.CodeAuthInvalid, "used")
			}
			return nil
		}
	})
	for range rounds {
		var dialers sync.WaitGroup
		for range crowd {
			dialers.Go(func() {
				conn, answer, err := websocket.DefaultDialer.Dial(n.url("hub=h&key=k"), nil)
				if answer != nil {
					_ = answer.Body.Close()
				}
				if err == nil {
					inside.Add(-1) // before it lets its place go
					_ = conn.Close()
				}
			})
		}
		dialers.Wait()
	}
	if got := most.Load(); got > limit || got < 2 {
		t.Errorf("%d were inside at once, at most %d may be", got, limit)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := n.Close(ctx); err != nil {
		t.Error(err)
	}
	if n.limits.taken != 0 || len(n.limits.hubs) != 0 {
		t.Errorf("places stay taken: %+v", n.limits)
	}
}
