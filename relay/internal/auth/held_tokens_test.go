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

// held issues a token and holds it, as for a stream.
func held(t *testing.T, tokens *TokenStore, g Grant) (token string, release func()) {
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

func TestHold(t *testing.T) {
	t.Parallel()
	const ttl = time.Minute
	tokens, client, _ := testTokens(t, ttl)
	ctx, cancel := context.WithCancel(t.Context())
	token, err := tokens.Issue(ctx, Grant{KeyName: "ops", Hub: "h"})
	if err != nil {
		t.Fatal(err)
	}
	name := tokens.redisKey(token)
	age := func() { client.PExpire(ctx, name, ttl/2) }
	fresh := func() bool { return client.PTTL(t.Context(), name).Val() > ttl*3/4 }
	age()
	g, release, err := tokens.KeepAlive(ctx, " "+token)
	if err != nil || g.Hub != "h" || !fresh() {
		t.Fatalf("%+v %v", g, err)
	}
	_, again, err := tokens.KeepAlive(ctx, token) // the client is back before its end was noticed
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- tokens.Run(ctx) }()
	age()
	release()
	if fresh() {
		t.Error("the end of one of two streams counts as the end")
	}
	again()
	testkit.WaitFor(t, "the token has its whole time at the end", fresh)
	if _, _, err := tokens.KeepAlive(ctx, token); err != nil {
		t.Errorf("back within its time: %v", err)
	}
	age()
	cancel()
	if err := <-ended; err != nil || !fresh() {
		t.Errorf("at the stop: %v", err)
	}
	if _, err := tokens.Consume(t.Context(), token); err != nil {
		t.Error(err)
	}
	if _, _, err := tokens.KeepAlive(t.Context(), token); !errors.Is(err, ErrTokenUnknown) {
		t.Errorf("a token that was used up: %v", err)
	}
}

// A token lives as long as its stream and no longer than the ttl without anybody who renews it.
func TestHeldTokensAreRenewed(t *testing.T) {
	t.Parallel()
	const ttl = 6 * time.Second
	tokens, client, _ := testTokens(t, ttl)
	ctx, cancel := context.WithCancel(t.Context())
	token, _ := held(t, tokens, Grant{KeyName: "ops"})
	ended := make(chan error, 1)
	go func() { ended <- tokens.Run(ctx) }()
	last := ttl // each renewal makes what is left more than it was
	for renewed := 0; renewed < 2; {
		left := client.PTTL(ctx, tokens.redisKey(token)).Val()
		if left <= 0 {
			t.Fatalf("gone after %d renewals", renewed)
		}
		if left > last {
			renewed++
		}
		last = left
		relay.Sleep(ctx, 10*time.Millisecond)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	client.PExpire(t.Context(), tokens.redisKey(token), ttl/100)
	testkit.WaitFor(t, "nobody renews it, so it is gone", func() bool { return client.Exists(t.Context(), tokens.redisKey(token)).Val() == 0 })
}

// A token that Redis loses below an open stream is good again soon, and once more when the stream ends; one that is used up
// stays so.
func TestHeldTokensThatAreLost(t *testing.T) {
	t.Parallel()
	const ttl = 4500 * time.Millisecond
	tokens, client, server := testTokens(t, ttl)
	ctx, cancel := context.WithCancel(t.Context())
	grant := Grant{KeyName: "ops", Hub: "h", Hubs: []string{"h"}}
	kept, release := held(t, tokens, grant)
	used, _ := held(t, tokens, grant)
	ended := make(chan error, 1)
	go func() { ended <- tokens.Run(ctx) }()
	good := func() bool {
		g, err := tokens.Get(ctx, kept)
		return err == nil && reflect.DeepEqual(g, grant)
	}
	if _, err := tokens.Consume(ctx, used); err != nil {
		t.Fatal(err)
	}
	client.Del(ctx, tokens.redisKey(kept))
	testkit.WaitFor(t, "the token is there again", good)
	if _, err := tokens.Get(ctx, used); !errors.Is(err, ErrTokenUnknown) {
		t.Errorf("the token that was used up: %v", err)
	}
	if left := client.PTTL(ctx, tokens.redisKey(used)).Val(); left < consumedTTL-time.Minute {
		t.Errorf("that it is used up is forgotten after %s", left)
	}
	// By now the node knows that the other was used up.
	server.Kill()
	server.Restart()
	client.FlushAll(ctx)
	testkit.WaitFor(t, "the token is there again behind a flush", good)
	if left := client.PTTL(ctx, tokens.redisKey(kept)).Val(); left <= 0 || left > ttl {
		t.Errorf("it lives for %s", left)
	}
	client.FlushAll(ctx)
	release()
	testkit.WaitFor(t, "the token is there for who comes back", good)
	if _, _, err := tokens.KeepAlive(ctx, kept); err != nil {
		t.Error(err)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	for _, gone := range []string{used, "x"} {
		if _, _, err := tokens.KeepAlive(t.Context(), gone); !errors.Is(err, ErrTokenUnknown) {
			t.Errorf("held: %v", err)
		}
		if _, err := tokens.Consume(t.Context(), gone); !errors.Is(err, ErrTokenUnknown) {
			t.Errorf("used: %v", err)
		}
	}
}

// Who has not seen Redis for longer than it remembers what was used up puts nothing back.
func TestHeldTokensOfAnAgeAgo(t *testing.T) {
	t.Parallel()
	tokens, client, _ := testTokens(t, time.Minute)
	now := time.Now()
	tokens.now = func() time.Time { return now }
	token, _ := held(t, tokens, Grant{KeyName: "ops"})
	for _, tt := range []struct {
		away time.Duration
		back bool
	}{{consumedTTL - time.Minute, true}, {2 * time.Minute, true}, {consumedTTL + time.Minute, false}} {
		now = now.Add(tt.away)
		client.FlushAll(t.Context())
		tokens.renewAll(t.Context(), tokens.holds.dueForRenewal(true))
		if _, err := tokens.Get(t.Context(), token); (err == nil) != tt.back {
			t.Errorf("away for %s: %v", tt.away, err)
		}
		tokens.renewAll(t.Context(), tokens.holds.dueForRenewal(true)) // seen again
	}
}

// A stream that ends while Redis is away, which loses the token, leaves its client a token all the same, for its time.
func TestHeldTokensWhoseStreamEndsInVain(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		away time.Duration
		back bool
	}{{59 * time.Second, true}, {time.Minute, false}} {
		tokens, client, server := testTokens(t, time.Minute)
		now := time.Now()
		tokens.now = func() time.Time { return now }
		token, release := held(t, tokens, Grant{KeyName: "ops"})
		server.Kill()
		release()
		tokens.renewAll(t.Context(), tokens.holds.dueForRenewal(false))
		now = now.Add(tt.away)
		tokens.renewAll(t.Context(), tokens.holds.dueForRenewal(false))
		server.Restart()
		client.FlushAll(t.Context())
		tokens.renewAll(t.Context(), tokens.holds.dueForRenewal(false))
		if _, err := tokens.Get(t.Context(), token); (err == nil) != tt.back {
			t.Errorf("away for %s: %v", tt.away, err)
		}
		if left := tokens.holds.dueForRenewal(false); len(left) != 0 {
			t.Errorf("%d are still to be renewed", len(left))
		}
	}
}
