package auth

import (
	"context"
	"errors"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hubrelay/hubrelay/internal/apikey"
	"github.com/hubrelay/hubrelay/internal/redistest"
)

func newTestStore(t *testing.T, ttl time.Duration) (*TokenStore, *redis.Client, *redistest.Server) {
	t.Helper()
	server := redistest.Start(t)
	client := redis.NewClient(&redis.Options{
		Network: "unix", Addr: server.Socket, MaxRetries: -1, DisableIdentity: true, PoolSize: 64,
	})
	t.Cleanup(func() { _ = client.Close() })
	return newNode(client, ttl), client, server
}

// newNode returns the token store of one node.
func newNode(client redis.UniversalClient, ttl time.Duration) *TokenStore {
	return NewTokenStore(TokenOptions{
		Client: client, Key: func(hash string) string { return "t:token:" + hash }, Changes: "t:tokenchanges",
		TTL: ttl, StreamTTL: testStreamTTL,
	})
}

const testStreamTTL = 1000 * time.Hour

func TestTokens(t *testing.T) {
	t.Parallel()
	tokens, client, server := newTestStore(t, time.Minute)
	ctx := t.Context()
	key := Key{
		Name: "ops", AccountID: "a", Hubs: []string{"h1", "h2"}, Hash: apikey.HashOf("x"),
		Expires: noon.Add(10000 * time.Hour),
	}
	grant := key.Grant("h1")
	token, err := tokens.Issue(ctx, grant, nil)
	if err != nil || len(token) != 43 {
		t.Fatalf("Issue = %q, %v", token, err)
	}

	t.Run("stored hashed", func(t *testing.T) {
		names, err := client.Keys(ctx, "*").Result()
		if err != nil || len(names) != 1 || len(names[0]) != len("t:token:")+64 {
			t.Fatalf("keys in Redis: %q, %v", names, err)
		}
		value := client.Get(ctx, names[0]).Val()
		if strings.Contains(names[0]+value, token) {
			t.Error("Redis contains the token itself")
		}
		if ttl := client.PTTL(ctx, names[0]).Val(); ttl <= 0 || ttl > time.Minute {
			t.Errorf("time to live %s", ttl)
		}
	})
	t.Run("Get does not consume it", func(t *testing.T) {
		for range 2 {
			got, err := tokens.Get(ctx, token)
			if err != nil || !reflect.DeepEqual(got, grant) {
				t.Fatalf("Get() = %+v, %v; want %+v", got, err, grant)
			}
		}
	})
	t.Run("unknown", func(t *testing.T) {
		for _, bad := range []string{"", " ", "x", token + "x", strings.Repeat("x", 5000), "\x00"} {
			if _, err := tokens.Consume(ctx, bad); !errors.Is(err, ErrTokenUnknown) {
				t.Errorf("Consume(%.20q): got error %v", bad, err)
			}
		}
	})
	t.Run("white space is ignored, once only", func(t *testing.T) {
		spaced := " " + token[:5] + "\n" + token[5:9] + "\r\n\t " + token[9:] + "\n"
		if got, err := tokens.Consume(ctx, spaced); err != nil || !reflect.DeepEqual(got, grant) {
			t.Fatalf("Consume() = %+v, %v; want %+v", got, err, grant)
		}
		if _, err := tokens.Consume(ctx, token); !errors.Is(err, ErrTokenUnknown) {
			t.Errorf("second Consume(): got error %v", err)
		}
	})
	t.Run("not longer than the key", func(t *testing.T) {
		short, old := grant, grant
		short.Expires, old.Expires = time.Now().Add(5*time.Second), time.Now()
		if _, err := tokens.Issue(ctx, short, nil); err != nil {
			t.Fatal(err)
		}
		names := client.Keys(ctx, "*").Val()
		if len(names) != 1 || client.PTTL(ctx, names[0]).Val() > 5*time.Second {
			t.Errorf("the token lives longer than its key: %v", names)
		}
		if _, err := tokens.Issue(ctx, old, nil); !errors.Is(err, ErrKeyExpired) {
			t.Errorf("Issue() for an expired key: got error %v", err)
		}
	})
	t.Run("Redis unavailable", func(t *testing.T) {
		server.Kill()
		if _, err := tokens.Issue(ctx, grant, nil); !errors.Is(err, ErrUnavailable) {
			t.Errorf("Issue(): got error %v", err)
		}
		if _, err := tokens.Consume(ctx, token); !errors.Is(err, ErrUnavailable) {
			t.Errorf("Consume(): got error %v", err)
		}
		if _, err := tokens.Get(ctx, token); !errors.Is(err, ErrUnavailable) || strings.Contains(err.Error(), token) {
			t.Errorf("Get(): got error %v", err)
		}
	})
}

func TestConsume_OnlyOnce(t *testing.T) {
	t.Parallel()
	tokens, _, _ := newTestStore(t, time.Minute)
	for range 20 {
		token, err := tokens.Issue(t.Context(), Grant{KeyName: "k"}, nil)
		if err != nil {
			t.Fatal(err)
		}
		var wins atomic.Int32
		var all sync.WaitGroup
		for range 50 {
			all.Go(func() {
				switch _, err := tokens.Consume(context.Background(), token); {
				case err == nil:
					wins.Add(1)
				case !errors.Is(err, ErrTokenUnknown):
					t.Error(err)
				}
			})
		}
		all.Wait()
		if wins.Load() != 1 {
			t.Fatalf("%d of 50 callers consumed the token, want 1", wins.Load())
		}
	}
}

func TestCleanToken(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{"": "", "ab": "ab", " a\tb\r\nc\u00a0d ": "abcd", "\n": ""} {
		if got := CleanToken(in); got != want {
			t.Errorf("CleanToken(%q) = %q", in, got)
		}
	}
}

// A token counts with its size in JSON, where a byte of a name can become six.
func TestTokens_IssueTakesRoom(t *testing.T) {
	t.Parallel()
	names := strings.Repeat("\x01", 1000)
	errFull := errors.New("full")
	taken := int64(0)
	tokens := NewTokenStore(TokenOptions{TTL: time.Minute})
	_, err := tokens.Issue(t.Context(), Grant{KeyName: names, Hubs: []string{names, names}}, func(bytes int64) error {
		taken = bytes
		return errFull
	})
	if !errors.Is(err, errFull) || taken < 6*3*1000 {
		t.Errorf("got %v after %d bytes, want the error of takeRoom and at least 18000 bytes", err, taken)
	}
}
