package auth

import (
	"context"
	"errors"
	"testing"
	"time"
)

// eventually fails the test when ok stays false.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for deadline := time.After(20 * time.Second); !ok(); {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("still not so: %s", what)
		}
	}
}

func TestHold(t *testing.T) {
	const ttl = time.Minute
	tokens, client, _ := testTokens(t, ttl)
	ctx, cancel := context.WithCancel(t.Context())
	token, err := tokens.Issue(ctx, Grant{KeyName: "ops", Hub: "h"})
	if err != nil {
		t.Fatal(err)
	}
	name := tokens.key(token)
	age := func() { client.PExpire(ctx, name, ttl/2) }
	fresh := func() bool { return client.PTTL(t.Context(), name).Val() > ttl*3/4 }
	age()
	g, release, err := tokens.Hold(ctx, " "+token)
	if err != nil || g.Hub != "h" || !fresh() {
		t.Fatalf("%+v %v", g, err)
	}
	_, again, err := tokens.Hold(ctx, token) // the client is back before its end was noticed
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
	eventually(t, "the token has its whole time at the end", fresh)
	if _, _, err := tokens.Hold(ctx, token); err != nil {
		t.Errorf("back within its time: %v", err)
	}
	age()
	cancel()
	if err := <-ended; err != nil || !fresh() {
		t.Errorf("at the stop: %v", err)
	}
	if _, err := tokens.Use(t.Context(), token); err != nil {
		t.Error(err)
	}
	if _, _, err := tokens.Hold(t.Context(), token); !errors.Is(err, ErrTokenUnknown) {
		t.Errorf("a token that was used up: %v", err)
	}
}

// A token lives as long as its stream and no longer than the ttl without anybody who renews it.
func TestHeldTokensAreRenewed(t *testing.T) {
	const ttl = 1500 * time.Millisecond
	tokens, client, _ := testTokens(t, ttl)
	ctx, cancel := context.WithCancel(t.Context())
	token, err := tokens.Issue(ctx, Grant{KeyName: "ops"})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := tokens.Hold(ctx, token); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- tokens.Run(ctx) }()
	last := ttl // each renewal makes what is left more than it was
	for renewed := 0; renewed < 5; {
		left := client.PTTL(ctx, tokens.key(token)).Val()
		if left <= 0 {
			t.Fatalf("gone after %d renewals", renewed)
		}
		if left > last {
			renewed++
		}
		last = left
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	eventually(t, "nobody renews it, so it is gone", func() bool { return client.Exists(t.Context(), tokens.key(token)).Val() == 0 })
}
