package auth

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/redis/go-redis/v9"
)

// Errors of the token store. Nothing else is returned, each wrapped with what was being done.
var (
	// ErrTokenUnknown is returned for a token that was never issued, has expired or was used.
	ErrTokenUnknown = errors.New("the token is not known, has expired or was used already")
	// ErrKeyExpired is returned where the key expired before a token could be issued.
	ErrKeyExpired = errors.New("the key has expired")
	// ErrUnavailable is returned when Redis did not answer; whether the token was used up is then not known.
	ErrUnavailable = errors.New("the token store cannot be reached")
)

// maxToken bounds what is hashed for a presented token; ours have 43 characters.
const maxToken = 1024

// Grant is what a token lets its bearer see.
type Grant struct {
	// KeyName names the key that asked for the token.
	KeyName string `json:"key"`
	// KeyID tells that key from a later one of the same name.
	KeyID string `json:"key_id"`
	// Hub is the hub whose pipeline is opened; empty for the account pipeline.
	Hub string `json:"hub,omitempty"`
	// Account is the key's account; [Wildcard] for every account, empty for none.
	Account string `json:"account,omitempty"`
	// Hubs are the hubs that the key opens; [Wildcard] means all.
	Hubs []string `json:"hubs,omitempty"`
	// Expires is when the key expires; zero means never.
	Expires time.Time `json:"expires,omitzero"`
}

// Allows says whether a notification of hub and account may be seen under the grant. The rules are DESIGN's:
//
//   - only the grant's hub on a hub pipeline, and on either pipeline only hubs that the key opens;
//   - never a notification of another account; the account [Wildcard] sees all its hubs hold;
//   - a notification without an account belongs to its hub: whoever opens the hub sees it, on the account pipeline
//     too. A key without an account sees only these.
func (g *Grant) Allows(hub, account string) bool {
	if g.Hub != "" && g.Hub != hub {
		return false
	}
	if account != "" && account != g.Account && g.Account != Wildcard {
		return false
	}
	return hubsInclude(g.Hubs, hub)
}

// VisibilityKey names what Allows says: grants of one pipeline have the same Sight where they allow the same. It is never empty.
func (g *Grant) VisibilityKey() string {
	if g.Hub == "" {
		return "hubs " + strings.Join(normalizeHubs(g.Hubs), "\x00") + " of " + g.Account
	}
	if !hubsInclude(g.Hubs, g.Hub) {
		return "nothing"
	}
	return "of " + g.Account
}

// SameVisibility says whether g allows the same as another grant of its pipeline.
func (g *Grant) SameVisibility(other *Grant) bool {
	return g.Account == other.Account && slices.Equal(g.Hubs, other.Hubs) || g.VisibilityKey() == other.VisibilityKey()
}

// normalizeHubs lists hubs as every key does that opens the same ones.
func normalizeHubs(hubs []string) []string {
	if slices.Contains(hubs, Wildcard) {
		return []string{Wildcard}
	}
	return slices.Compact(slices.Sorted(slices.Values(hubs)))
}

// TokenStore is the store of tokens in Redis. Only a token's SHA-256 is stored. All methods may be called
// concurrently and from several nodes.
type TokenStore struct {
	client redis.Cmdable
	keyFor func(hash string) string
	ttl    time.Duration
	now    func() time.Time
	holds  heldTokens
}

// NewTokenStore returns a store whose tokens live for ttl. name returns the Redis key for the hexadecimal SHA-256 of a
// token. The client must not retry by itself (MaxRetries -1): a retried Use would find the token gone.
func NewTokenStore(client redis.Cmdable, name func(hash string) string, ttl time.Duration) *TokenStore {
	return &TokenStore{
		client: client, keyFor: name, ttl: ttl, now: time.Now,
		holds: heldTokens{byKey: make(map[string]*heldToken), wake: make(chan struct{}, 1)},
	}
}

// Issue stores the grant under a new random token (32 bytes, base64url) and returns the token. It lives for the
// store's ttl, and no longer than the key.
func (t *TokenStore) Issue(ctx context.Context, g Grant) (string, error) {
	ttl := t.ttl
	if !g.Expires.IsZero() {
		ttl = min(ttl, g.Expires.Sub(t.now()))
	}
	if ttl < time.Millisecond {
		return "", fmt.Errorf("issue a token for the key %q: %w", g.KeyName, ErrKeyExpired)
	}
	value, err := json.Marshal(g)
	if err != nil {
		return "", fmt.Errorf("encode the grant of the key %q: %w", g.KeyName, err)
	}
	var b [32]byte
	_, _ = rand.Read(b[:]) // never fails: crypto/rand ends the program instead
	token := base64.RawURLEncoding.EncodeToString(b[:])
	if err := t.client.Set(ctx, t.redisKey(token), value, ttl.Truncate(time.Millisecond)).Err(); err != nil {
		return "", fmt.Errorf("store a token: %w: %w", ErrUnavailable, err)
	}
	return token, nil
}

// Get returns the grant of a token and leaves the token as it is. White space anywhere in the token is ignored.
func (t *TokenStore) Get(ctx context.Context, token string) (Grant, error) {
	g, _, err := t.loadGrant(token, func(key string) (string, error) { return t.client.Get(ctx, key).Result() })
	return g, err
}

// Consume returns the grant of a token and uses it up: of any number of callers exactly one succeeds. White space anywhere
// in the token is ignored.
func (t *TokenStore) Consume(ctx context.Context, token string) (Grant, error) {
	g, _, err := t.loadGrant(token, func(key string) (string, error) {
		return useScript.Run(ctx, t.client, []string{key}, consumedTTL.Milliseconds()).Text()
	})
	return g, err
}

// loadGrant returns a grant, and the text that stands for it in Redis, where get has it from.
func (t *TokenStore) loadGrant(token string, get func(key string) (string, error)) (g Grant, text string, err error) {
	token = CleanToken(token)
	if token == "" || len(token) > maxToken {
		return Grant{}, "", ErrTokenUnknown
	}
	text, err = get(t.redisKey(token))
	switch {
	case errors.Is(err, redis.Nil):
		return Grant{}, "", ErrTokenUnknown
	case err != nil:
		return Grant{}, "", fmt.Errorf("look up a token: %w: %w", ErrUnavailable, err)
	}
	if err := json.Unmarshal([]byte(text), &g); err != nil {
		// It was used up while it was held, or somebody else wrote there; the bearer can do nothing but ask for another token.
		return Grant{}, "", fmt.Errorf("%w: its grant cannot be read", ErrTokenUnknown)
	}
	return g, text, nil
}

func (t *TokenStore) redisKey(token string) string {
	sum := sha256.Sum256([]byte(token))
	return t.keyFor(hex.EncodeToString(sum[:]))
}

// CleanToken removes white space from a presented token: spec.md's sample has spaces and line breaks inside.
func CleanToken(token string) string {
	if strings.IndexFunc(token, unicode.IsSpace) < 0 {
		return token
	}
	return strings.Map(func(r rune) rune {
		if unicode.IsSpace(r) {
			return -1
		}
		return r
	}, token)
}
