package auth

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hubrelay/hubrelay/internal/await"
	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn/conntest"
)

// newHeldToken issues a token and keeps it alive, as for a stream.
func newHeldToken(t *testing.T, tokens *TokenStore, g Grant) (token string, h *Hold) {
	t.Helper()
	token, err := tokens.Issue(t.Context(), g, nil)
	if err != nil {
		t.Fatal(err)
	}
	if h, err = tokens.KeepAlive(t.Context(), token, ignoreEnd); err != nil {
		t.Fatal(err)
	}
	return token, h
}

func ignoreEnd() {}

// run runs the store until the returned function is called.
func run(t *testing.T, tokens *TokenStore) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- tokens.Run(ctx) }()
	return func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

func TestKeepAlive(t *testing.T) {
	t.Parallel()
	const ttl = time.Minute
	tokens, client, _ := newTestStore(t, ttl)
	ctx := t.Context()
	token, err := tokens.Issue(ctx, Grant{KeyName: "ops", Hub: "h"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	key := tokens.redisKey(token)
	halveTTL := func() { client.PExpire(ctx, key, ttl/2) }
	isRenewed := func() bool { return client.PTTL(t.Context(), key).Val() > ttl*3/4 }
	halveTTL()
	hold, err := tokens.KeepAlive(ctx, " "+token, ignoreEnd)
	if err != nil || !isRenewed() {
		t.Fatalf("KeepAlive() = %+v, %v", hold, err)
	}
	if g, err := tokens.Get(ctx, token); err != nil || g.Hub != "h" {
		t.Fatalf("Get() = %+v, %v", g, err)
	}
	stop := run(t, tokens)
	halveTTL()
	hold.Release()
	testkit.WaitFor(t, "renewal at the end of the stream", isRenewed)
	if _, err := tokens.KeepAlive(ctx, token, ignoreEnd); err != nil {
		t.Errorf("KeepAlive() within the TTL: got error %v", err)
	}
	halveTTL()
	stop()
	if !isRenewed() {
		t.Error("the token was not renewed at the stop")
	}
	if _, err := tokens.Consume(ctx, token); err != nil {
		t.Error(err)
	}
	if _, err := tokens.KeepAlive(ctx, token, ignoreEnd); !errors.Is(err, ErrTokenUnknown) {
		t.Errorf("KeepAlive() of a consumed token: got error %v", err)
	}
}

// Copies of a token do not multiply: each new stream ends the one before, also on another node.
func TestKeepAlive_EndsEarlierStream(t *testing.T) {
	t.Parallel()
	first, client, _ := newTestStore(t, time.Minute)
	second := newNode(client, time.Minute)
	defer run(t, first)()
	defer run(t, second)()
	testkit.WaitForValue(t, "subscriptions of both nodes", 2, func() int64 {
		return client.PubSubNumSub(t.Context(), first.opts.Changes).Val()[first.opts.Changes]
	})
	token, err := first.Issue(t.Context(), Grant{KeyName: "ops"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	var last *Hold
	ended := make(chan int, 10)
	for i, node := range []*TokenStore{first, second, second, first} {
		next, err := node.KeepAlive(t.Context(), token, func() { ended <- i })
		if err != nil {
			t.Fatal(err)
		}
		if last != nil {
			if got := <-ended; got != i-1 || last.State() != HoldReplaced {
				t.Errorf("stream %d ended with state %d, want %d with %d", got, last.State(), i-1, HoldReplaced)
			}
			last.Release() // must not renew the token of the next stream
		}
		last = next
	}
	if last.State() != HoldActive {
		t.Errorf("the last stream has the state %d", last.State())
	}
	if _, err := second.Consume(t.Context(), token); err != nil {
		t.Error(err)
	}
	if got := <-ended; got != 3 || last.State() != HoldRevoked {
		t.Errorf("stream %d ended with state %d, want 3 with %d", got, last.State(), HoldRevoked)
	}
}

// A stream ends if another node obtains or consumes its token before this node knows that it has the token.
func TestKeepAlive_EndsIfChangedMeanwhile(t *testing.T) {
	t.Parallel()
	for want, change := range map[HoldState]func(node *TokenStore, token string) error{
		HoldReplaced: func(node *TokenStore, token string) error {
			_, err := node.KeepAlive(t.Context(), token, ignoreEnd)
			return err
		},
		HoldRevoked: func(node *TokenStore, token string) error {
			_, err := node.Consume(t.Context(), token)
			return err
		},
	} {
		first, client, server := newTestStore(t, time.Minute)
		other := redis.NewClient(&redis.Options{Network: "unix", Addr: server.Socket})
		defer func() { _ = other.Close() }()
		second := newNode(other, time.Minute)
		token, err := first.Issue(t.Context(), Grant{KeyName: "ops"}, nil)
		if err != nil {
			t.Fatal(err)
		}
		client.AddHook(conntest.AfterScript(func() {
			if err := change(second, token); err != nil {
				t.Error(err)
			}
		}))
		ended := 0
		h, err := first.KeepAlive(t.Context(), token, func() { ended++ })
		if err != nil || h.State() != want || ended != 1 {
			t.Errorf("got state %d, %d calls and error %v, want state %d and one call", h.State(), ended, err, want)
		}
	}
}

// One owner cannot fill Redis with tokens that its streams keep alive.
func TestKeepAlive_LimitsBytesPerOwner(t *testing.T) {
	t.Parallel()
	tokens, client, _ := newTestStore(t, time.Minute)
	now := time.Now()
	tokens.now = func() time.Time { return now }
	long := Grant{KeyName: "long", Hub: "h", Stream: strings.Repeat("<", 2000)}
	tokens.opts.MaxHeldBytes = func() int64 { return 2 * 3 * 2900 }
	issue := func(g Grant) string {
		t.Helper()
		token, err := tokens.Issue(t.Context(), g, nil)
		if err != nil {
			t.Fatal(err)
		}
		return token
	}
	open := func(token string) (*Hold, error) { return tokens.KeepAlive(t.Context(), token, func() {}) }
	var used []string
	var holds []*Hold
	for range 3 {
		token := issue(long)
		h, err := open(token)
		if err != nil {
			t.Fatal(err)
		}
		used, holds = append(used, token), append(holds, h)
	}
	rejected := issue(long)
	if _, err := open(rejected); !errors.Is(err, ErrTooManyHeld) {
		t.Errorf("got %v, want %v", err, ErrTooManyHeld)
	}
	if text := client.Get(t.Context(), tokens.redisKey(rejected)).Val(); !strings.HasPrefix(text, "{") {
		t.Errorf("a rejected stream has changed its token: %.40s", text)
	}
	if h, err := open(issue(Grant{KeyName: "other", Hub: "h"})); err != nil {
		t.Errorf("another owner: got %v", err)
	} else {
		h.Release()
	}
	for _, h := range holds {
		h.Release()
	}
	h, err := open(used[0]) // it counts already
	if err != nil {
		t.Fatal(err)
	}
	if _, err := open(rejected); !errors.Is(err, ErrTooManyHeld) {
		t.Errorf("before the released tokens have expired: got %v, want %v", err, ErrTooManyHeld)
	}
	now = now.Add(time.Minute)
	h.Release()
	if h, err = open(rejected); err != nil {
		t.Fatalf("after the released tokens have expired: got %v", err)
	}
	h.end(HoldRevoked)
	h.Release()
	if n := tokens.holds.bytes.byOwner.Bytes("key long"); n < 2900*9/10 || n > 2900 {
		t.Errorf("got %d bytes for one released token", n)
	}
}

// Many owners with a token must not block the streams of others, nor fill Redis.
func TestHeldBytes_OwnersShareMemory(t *testing.T) {
	t.Parallel()
	const maxBytes = 1 << 20
	b := newHeldBytes()
	now := time.Now()
	add := func(owner string, size int64) bool {
		return b.addStream(fmt.Sprint(owner, len(b.byKey)), owner, size, maxBytes, now)
	}
	for i := range 10_000 {
		if !add(fmt.Sprint("small", i), 400) {
			t.Fatalf("owner %d may have no token", i)
		}
	}
	if !add("quiet", minHeldBytes) {
		t.Error("a quiet owner may have no token")
	}
	for add("loud", 400) {
	}
	if got := b.byOwner.Bytes("loud"); got > maxBytes/2 {
		t.Errorf("a loud owner has %d bytes, want at most half of %d", got, maxBytes)
	}
}

// Without Pub/Sub, a node learns of a later stream and of a consumed token when it renews.
func TestRenewAll_EndsStreams(t *testing.T) {
	t.Parallel()
	first, client, _ := newTestStore(t, time.Minute)
	second := newNode(client, time.Minute)
	replaced, replacedHold := newHeldToken(t, first, Grant{KeyName: "ops"})
	consumed, consumedHold := newHeldToken(t, first, Grant{KeyName: "ops"})
	_, keptHold := newHeldToken(t, first, Grant{KeyName: "ops"})
	if _, err := second.KeepAlive(t.Context(), replaced, ignoreEnd); err != nil {
		t.Fatal(err)
	}
	if _, err := second.Consume(t.Context(), consumed); err != nil {
		t.Fatal(err)
	}
	first.renewAll(t.Context(), first.holds.dueForRenewal(true))
	for h, want := range map[*Hold]HoldState{
		replacedHold: HoldReplaced, consumedHold: HoldRevoked, keptHold: HoldActive,
	} {
		if h.State() != want {
			t.Errorf("got state %d, want %d", h.State(), want)
		}
	}
}

// A token has a maximum age, however often its stream reconnects.
func TestKeepAlive_StreamTTL(t *testing.T) {
	t.Parallel()
	tokens, client, _ := newTestStore(t, time.Hour)
	now := time.Now()
	tokens.now = func() time.Time { return now }
	token, h := newHeldToken(t, tokens, Grant{KeyName: "ops"})
	end := h.Deadline()
	if age := end.Sub(now).Round(time.Second); age != testStreamTTL {
		t.Errorf("the maximum age is %s, want %s", age, testStreamTTL)
	}
	for now = end.Add(-30 * time.Minute); now.Before(end); now = now.Add(10 * time.Minute) {
		next, err := tokens.KeepAlive(t.Context(), token, ignoreEnd)
		if err != nil {
			t.Fatal(err)
		}
		tokens.renewAll(t.Context(), tokens.holds.dueForRenewal(true))
		remaining := client.PTTL(t.Context(), tokens.redisKey(token)).Val()
		if next.State() != HoldActive || !next.Deadline().Equal(end) || remaining > end.Sub(now) {
			t.Errorf("%s before the end: state %d, deadline %s, TTL %s, want active, %s and less",
				end.Sub(now), next.State(), next.Deadline(), remaining, end)
		}
		h = next
	}
	if h.State() != HoldExpired {
		t.Errorf("got state %d after the end, want %d", h.State(), HoldExpired)
	}
	if _, err := tokens.KeepAlive(t.Context(), token, ignoreEnd); !errors.Is(err, ErrTokenUnknown) {
		t.Errorf("KeepAlive() after the end: got error %v", err)
	}
}

// A token is renewed while its stream is open, and expires when Run has stopped.
func TestKeepAlive_RenewsUntilRunStops(t *testing.T) {
	t.Parallel()
	const ttl = 30 * time.Second
	tokens, client, _ := newTestStore(t, ttl)
	ctx, cancel := context.WithCancel(t.Context())
	token, _ := newHeldToken(t, tokens, Grant{KeyName: "ops"})
	ended := make(chan error, 1)
	go func() { ended <- tokens.Run(ctx) }()
	last := ttl // a renewal increases the remaining time
	for renewals := 0; renewals < 1; {
		remaining := client.PTTL(ctx, tokens.redisKey(token)).Val()
		if remaining <= 0 {
			t.Fatalf("the token expired after %d renewals", renewals)
		}
		if remaining > last {
			renewals++
		}
		last = remaining
		await.Duration(ctx, 10*time.Millisecond)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	client.PExpire(t.Context(), tokens.redisKey(token), 50*time.Millisecond)
	testkit.WaitForValue(t, "expiry of the token", 0, func() int64 {
		return client.Exists(t.Context(), tokens.redisKey(token)).Val()
	})
}

// A token that Redis loses while its stream is open is restored, and again when the stream ends. A consumed token is
// not.
func TestKeepAlive_RestoresLostTokens(t *testing.T) {
	t.Parallel()
	const ttl = 4500 * time.Millisecond
	tokens, client, server := newTestStore(t, ttl)
	ctx, cancel := context.WithCancel(t.Context())
	grant := Grant{KeyName: "ops", Hub: "h", Hubs: []string{"h"}}
	live, hold := newHeldToken(t, tokens, grant)
	consumed, _ := newHeldToken(t, tokens, grant)
	ended := make(chan error, 1)
	go func() { ended <- tokens.Run(ctx) }()
	isRestored := func() bool {
		g, err := tokens.Get(ctx, live)
		return err == nil && reflect.DeepEqual(g, grant)
	}
	if _, err := tokens.Consume(ctx, consumed); err != nil {
		t.Fatal(err)
	}
	if remaining := client.PTTL(ctx, tokens.redisKey(consumed)).Val(); remaining <= ttl || remaining > consumedTTLs*ttl {
		t.Errorf("got a TTL of %s for the marker, want about %s", remaining, consumedTTLs*ttl)
	}
	client.Del(ctx, tokens.redisKey(live))
	testkit.WaitFor(t, "the token to be restored", isRestored)
	if _, err := tokens.Get(ctx, consumed); !errors.Is(err, ErrTokenUnknown) {
		t.Errorf("Get() of the consumed token: got error %v", err)
	}
	// By now the node has seen the marker.
	server.Kill()
	server.Restart()
	client.FlushAll(ctx)
	testkit.WaitFor(t, "the token to be restored after a flush", isRestored)
	if remaining := client.PTTL(ctx, tokens.redisKey(live)).Val(); remaining <= 0 || remaining > ttl {
		t.Errorf("got a TTL of %s, want at most %s", remaining, ttl)
	}
	client.FlushAll(ctx)
	hold.Release()
	testkit.WaitFor(t, "the token to be restored after the stream", isRestored)
	if _, err := tokens.KeepAlive(ctx, live, ignoreEnd); err != nil {
		t.Error(err)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	for _, token := range []string{consumed, "x"} {
		if _, err := tokens.KeepAlive(t.Context(), token, ignoreEnd); !errors.Is(err, ErrTokenUnknown) {
			t.Errorf("KeepAlive(): got error %v, want %v", err, ErrTokenUnknown)
		}
		if _, err := tokens.Consume(t.Context(), token); !errors.Is(err, ErrTokenUnknown) {
			t.Errorf("Consume(): got error %v, want %v", err, ErrTokenUnknown)
		}
	}
}

// A node that did not reach Redis for longer than the lifetime of a marker restores no tokens.
func TestRenewAll_LongOutage(t *testing.T) {
	t.Parallel()
	tokens, client, _ := newTestStore(t, time.Minute)
	now := time.Now()
	tokens.now = func() time.Time { return now }
	token, _ := newHeldToken(t, tokens, Grant{KeyName: "ops"})
	for _, tt := range []struct {
		outage   time.Duration
		restored bool
	}{{tokens.consumedTTL() - time.Minute, true}, {2 * time.Minute, true}, {tokens.consumedTTL() + time.Minute, false}} {
		now = now.Add(tt.outage)
		client.FlushAll(t.Context())
		tokens.renewAll(t.Context(), tokens.holds.dueForRenewal(true))
		if _, err := tokens.Get(t.Context(), token); (err == nil) != tt.restored {
			t.Errorf("outage of %s: got error %v, want restored %v", tt.outage, err, tt.restored)
		}
		tokens.renewAll(t.Context(), tokens.holds.dueForRenewal(true)) // updates lastSeen
	}
}

// If a stream ends during an outage in which Redis loses the token, the token is restored within its TTL.
func TestRenewAll_StreamEndsDuringOutage(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		outage   time.Duration
		restored bool
	}{{59 * time.Second, true}, {time.Minute, false}} {
		tokens, client, server := newTestStore(t, time.Minute)
		now := time.Now()
		tokens.now = func() time.Time { return now }
		token, hold := newHeldToken(t, tokens, Grant{KeyName: "ops"})
		server.Kill()
		hold.Release()
		tokens.renewAll(t.Context(), tokens.holds.dueForRenewal(false))
		now = now.Add(tt.outage)
		tokens.renewAll(t.Context(), tokens.holds.dueForRenewal(false))
		server.Restart()
		client.FlushAll(t.Context())
		tokens.renewAll(t.Context(), tokens.holds.dueForRenewal(false))
		if _, err := tokens.Get(t.Context(), token); (err == nil) != tt.restored {
			t.Errorf("outage of %s: got error %v, want restored %v", tt.outage, err, tt.restored)
		}
		if due := tokens.holds.dueForRenewal(false); len(due) != 0 {
			t.Errorf("got %d tokens due for renewal, want 0", len(due))
		}
	}
}
