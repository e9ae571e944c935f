package auth

import (
	"context"
	"errors"
	"reflect"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay"
)

// newHeldToken issues a token and keeps it alive, as for a stream.
func newHeldToken(t *testing.T, tokens *TokenStore, g Grant) (token string, release func()) {
	t.Helper()
	token, err := tokens.Issue(t.Context(), g)
	if err != nil {
		t.Fatal(err)
	}
	if _, release, err = tokens.KeepAlive(t.Context(), token); err != nil {
		t.Fatal(err)
	}
	return token, release
}

func TestKeepAlive(t *testing.T) {
	t.Parallel()
	const ttl = time.Minute
	tokens, client, _ := newTestStore(t, ttl)
	ctx, cancel := context.WithCancel(t.Context())
	token, err := tokens.Issue(ctx, Grant{KeyName: "ops", Hub: "h"})
	if err != nil {
		t.Fatal(err)
	}
	key := tokens.redisKey(token)
	halveTTL := func() { client.PExpire(ctx, key, ttl/2) }
	isRenewed := func() bool { return client.PTTL(t.Context(), key).Val() > ttl*3/4 }
	halveTTL()
	g, release, err := tokens.KeepAlive(ctx, " "+token)
	if err != nil || g.Hub != "h" || !isRenewed() {
		t.Fatalf("KeepAlive() = %+v, %v", g, err)
	}
	_, releaseSecond, err := tokens.KeepAlive(ctx, token) // the client reconnects before the end was detected
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- tokens.Run(ctx) }()
	halveTTL()
	release()
	if isRenewed() {
		t.Error("the token was renewed after the end of one of two streams")
	}
	releaseSecond()
	testkit.WaitFor(t, "renewal at the end of the last stream", isRenewed)
	if _, _, err := tokens.KeepAlive(ctx, token); err != nil {
		t.Errorf("KeepAlive() within the TTL: got error %v", err)
	}
	halveTTL()
	cancel()
	if err := <-ended; err != nil || !isRenewed() {
		t.Errorf("after the stop: got error %v, renewed %v", err, isRenewed())
	}
	if _, err := tokens.Consume(t.Context(), token); err != nil {
		t.Error(err)
	}
	if _, _, err := tokens.KeepAlive(t.Context(), token); !errors.Is(err, ErrTokenUnknown) {
		t.Errorf("KeepAlive() of a consumed token: got error %v", err)
	}
}

// A token is renewed while its stream is open, and expires when Run has stopped.
func TestKeepAlive_RenewsUntilRunStops(t *testing.T) {
	t.Parallel()
	const ttl = 6 * time.Second
	tokens, client, _ := newTestStore(t, ttl)
	ctx, cancel := context.WithCancel(t.Context())
	token, _ := newHeldToken(t, tokens, Grant{KeyName: "ops"})
	ended := make(chan error, 1)
	go func() { ended <- tokens.Run(ctx) }()
	last := ttl // a renewal increases the remaining time
	for renewals := 0; renewals < 2; {
		remaining := client.PTTL(ctx, tokens.redisKey(token)).Val()
		if remaining <= 0 {
			t.Fatalf("the token expired after %d renewals", renewals)
		}
		if remaining > last {
			renewals++
		}
		last = remaining
		relay.Sleep(ctx, 10*time.Millisecond)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	client.PExpire(t.Context(), tokens.redisKey(token), ttl/100)
	testkit.WaitFor(t, "expiry of the token", func() bool {
		return client.Exists(t.Context(), tokens.redisKey(token)).Val() == 0
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
	live, release := newHeldToken(t, tokens, grant)
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
	client.Del(ctx, tokens.redisKey(live))
	testkit.WaitFor(t, "the token to be restored", isRestored)
	if _, err := tokens.Get(ctx, consumed); !errors.Is(err, ErrTokenUnknown) {
		t.Errorf("Get() of the consumed token: got error %v", err)
	}
	if remaining := client.PTTL(ctx, tokens.redisKey(consumed)).Val(); remaining < consumedTTL-time.Minute {
		t.Errorf("got a TTL of %s for the marker, want about %s", remaining, consumedTTL)
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
	release()
	testkit.WaitFor(t, "the token to be restored after the stream", isRestored)
	if _, _, err := tokens.KeepAlive(ctx, live); err != nil {
		t.Error(err)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	for _, token := range []string{consumed, "x"} {
		if _, _, err := tokens.KeepAlive(t.Context(), token); !errors.Is(err, ErrTokenUnknown) {
			t.Errorf("KeepAlive(): got error %v, want %v", err, ErrTokenUnknown)
		}
		if _, err := tokens.Consume(t.Context(), token); !errors.Is(err, ErrTokenUnknown) {
			t.Errorf("Consume(): got error %v, want %v", err, ErrTokenUnknown)
		}
	}
}

// A node that did not reach Redis for longer than consumedTTL restores no tokens.
func TestRenewAll_LongOutage(t *testing.T) {
	t.Parallel()
	tokens, client, _ := newTestStore(t, time.Minute)
	now := time.Now()
	tokens.now = func() time.Time { return now }
	token, _ := newHeldToken(t, tokens, Grant{KeyName: "ops"})
	for _, tt := range []struct {
		outage   time.Duration
		restored bool
	}{{consumedTTL - time.Minute, true}, {2 * time.Minute, true}, {consumedTTL + time.Minute, false}} {
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
		token, release := newHeldToken(t, tokens, Grant{KeyName: "ops"})
		server.Kill()
		release()
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
