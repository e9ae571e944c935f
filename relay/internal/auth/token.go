package auth

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	_ "embed" // the scripts
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

	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
)

// The errors of the token store. All methods wrap one of them.
var (
	// ErrTokenUnknown is returned for a token that was never issued, has expired, or was consumed.
	ErrTokenUnknown = errors.New("the token is not known, has expired or was used already")
	// ErrKeyExpired is returned if the key expired before a token was issued.
	ErrKeyExpired = errors.New("the key has expired")
	// ErrTooManyHeld is returned if the tokens of the open event streams of an owner would take too much memory in Redis.
	ErrTooManyHeld = errors.New("the tokens of the open streams take too much memory")
	// ErrUnavailable is returned if Redis did not respond. It is then unknown whether the token was consumed.
	ErrUnavailable = errors.New("the token store cannot be reached")
)

// maxToken is the maximum length of a presented token. Issued tokens have 43 characters.
const maxToken = 1024

// Grant describes the notifications that the bearer of a token may see.
type Grant struct {
	// KeyName is the name of the key that requested the token.
	KeyName string `json:"key"`
	// KeyID distinguishes the key from a later key with the same name.
	KeyID string `json:"key_id"`
	// Hub is the hub of the stream. It is empty for the account stream.
	Hub string `json:"hub,omitempty"`
	// Account is the account of the key: [Wildcard] for every account, empty for none.
	Account string `json:"account,omitempty"`
	// Hubs are the hubs that the key may read, or only Hub for its stream. [Wildcard] means all.
	Hubs []string `json:"hubs,omitempty"`
	// Expires is the time at which the key expires. Zero means never.
	Expires time.Time `json:"expires,omitzero"`
	// Stream contains the parameters of the stream that the token opens, as a query. It may be empty.
	Stream string `json:"stream,omitempty"`
	// External, VerifiedAt and CertificateExpires are the fields of the key.
	External           bool      `json:"external,omitempty"`
	VerifiedAt         time.Time `json:"verified_at,omitzero"`
	CertificateExpires time.Time `json:"certificate_expires,omitzero"`
}

// Allows reports whether the grant includes a notification of hub and account:
//
//   - On a hub stream only the hub of the grant is included. On both streams only hubs that the key may read are
//     included.
//   - Notifications of other accounts are never included, except for the account [Wildcard].
//   - A notification without an account belongs to its hub. It is included if the key may read the hub, on the account
//     stream too. A key without an account sees only these notifications.
func (g *Grant) Allows(hub, account string) bool { return g.Exclude(hub, account) == NotExcluded }

// Exclusion is the rule by which a grant excludes a notification.
type Exclusion string

// The rules of [Grant.Allows].
const (
	NotExcluded       Exclusion = ""
	ExcludedByHub     Exclusion = "hub"     // the stream is that of another hub
	ExcludedByAccount Exclusion = "account" // the notification belongs to another account
	ExcludedByHubs    Exclusion = "hubs"    // the key may not read the hub
)

// Exclude returns the rule that excludes a notification, or NotExcluded. See [Grant.Allows].
func (g *Grant) Exclude(hub, account string) Exclusion {
	switch {
	case g.Hub != "" && g.Hub != hub:
		return ExcludedByHub
	case account != "" && account != g.Account && g.Account != Wildcard:
		return ExcludedByAccount
	case !includesHub(g.Hubs, hub):
		return ExcludedByHubs
	default:
		return NotExcluded
	}
}

// VisibilityKey identifies the results of Allows. If two grants of one stream have the same key, Allows returns the
// same for both. The key is never empty.
func (g *Grant) VisibilityKey() string {
	if g.Hub == "" {
		return "hubs " + strings.Join(normalizeHubs(g.Hubs), "\x00") + " of " + g.Account
	}
	if !includesHub(g.Hubs, g.Hub) {
		return "nothing"
	}
	return "of " + g.Account
}

// SameVisibility reports whether g allows the same as other, which must be a grant of the same stream.
func (g *Grant) SameVisibility(other *Grant) bool {
	return g.Account == other.Account && slices.Equal(g.Hubs, other.Hubs) || g.VisibilityKey() == other.VisibilityKey()
}

// normalizeHubs returns the same list for all keys that may read the same hubs.
func normalizeHubs(hubs []string) []string {
	if slices.Contains(hubs, Wildcard) {
		return []string{Wildcard}
	}
	return slices.Compact(slices.Sorted(slices.Values(hubs)))
}

// TokenStore stores tokens in Redis, as their SHA-256. All methods are safe for concurrent use, also by several nodes.
type TokenStore struct {
	opts  TokenOptions
	now   func() time.Time
	holds heldTokens
}

// TokenOptions are the settings of a [TokenStore]. All fields except MaxHeldBytes are required.
type TokenOptions struct {
	// Client must not retry commands (MaxRetries -1), because a retried Consume would not find the token.
	Client redis.UniversalClient
	// Key returns the Redis key for the hexadecimal SHA-256 of a token.
	Key func(hash string) string
	// Changes is the channel on which the nodes learn that a token has another stream, or none.
	Changes string
	// TTL is the lifetime of a token without a stream.
	TTL time.Duration
	// StreamTTL is the maximum age of a token that event streams keep alive, from the first stream on.
	StreamTTL time.Duration
	// MaxHeldBytes returns the memory in Redis, in bytes, that the owners share for the tokens that event streams of this node keep
	// alive, also for the TTL after their streams, see [storage.FairShare]. 0 means no limit, and so does nil.
	MaxHeldBytes func() int64
}

// NewTokenStore returns a store. It does not use Redis yet.
func NewTokenStore(o TokenOptions) *TokenStore {
	return &TokenStore{
		opts: o, now: time.Now,
		holds: heldTokens{
			byKey: make(map[string]*Hold), wake: make(chan struct{}, 1),
			bytes: newHeldBytes(),
		},
	}
}

// tokenOverhead is about the number of bytes in Redis for a token, without its grant.
const tokenOverhead = 256

// storedSize returns about the number of bytes in Redis for a token with a value. Allocators round up.
func storedSize(value string) int64 { return int64(tokenOverhead + len(value) + len(value)/4) }

// encodeGrant does not escape <, > and &, which would take six bytes each.
func encodeGrant(g *Grant) (string, error) {
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(g)
	return strings.TrimSuffix(b.String(), "\n"), err
}

// Owner returns the name under which memory and storage are limited. See [Key.Owner].
func (g *Grant) Owner() string { return ownerOf(g.Account, g.KeyName, g.External) }

// Issue stores the grant with a new random token (32 bytes, base64url) and returns the token. The token lives for the
// TTL of the store, but not longer than the key. takeRoom gets about the number of bytes to store. Its error is returned, and
// nothing is stored. It may be nil.
func (t *TokenStore) Issue(ctx context.Context, g Grant, takeRoom func(bytes int64) error) (string, error) {
	ttl := t.opts.TTL
	if !g.Expires.IsZero() {
		ttl = min(ttl, g.Expires.Sub(t.now()))
	}
	if ttl < time.Millisecond {
		return "", fmt.Errorf("issue a token for the key %q: %w", g.KeyName, ErrKeyExpired)
	}
	value, err := encodeGrant(&g)
	if err != nil {
		return "", fmt.Errorf("encode the grant of the key %q: %w", g.KeyName, err)
	}
	if takeRoom != nil {
		if err := takeRoom(storedSize(value)); err != nil {
			return "", err
		}
	}
	var b [32]byte
	_, _ = rand.Read(b[:]) // never returns an error
	token := base64.RawURLEncoding.EncodeToString(b[:])
	if err := t.opts.Client.Set(ctx, t.redisKey(token), value, ttl.Truncate(time.Millisecond)).Err(); err != nil {
		return "", fmt.Errorf("store a token: %w: %w", ErrUnavailable, err)
	}
	return token, nil
}

// Get returns the grant of a token without consuming it. White space in the token is ignored.
func (t *TokenStore) Get(ctx context.Context, token string) (Grant, error) {
	g, _, err := t.loadGrant(token, func(key string) (string, error) { return t.opts.Client.Get(ctx, key).Result() })
	return g, err
}

// Consume returns the grant of a token and consumes the token, which also ends its event stream. Of any number of
// callers, exactly one succeeds. White space in the token is ignored.
func (t *TokenStore) Consume(ctx context.Context, token string) (Grant, error) {
	g, text, err := t.loadGrant(token, func(key string) (string, error) {
		return consumeScript.Run(ctx, t.opts.Client, []string{key}, t.consumedTTL().Milliseconds()).Text()
	})
	if _, _, isHeld := parseHeld(text); err == nil && isHeld {
		t.announce(ctx, t.redisKey(CleanToken(token)), consumedMarker)
	}
	return g, err
}

// loadGrant returns the grant of a token and its text in Redis. get reads the text.
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
	grant := text
	if i := strings.IndexByte(text, '{'); i > 0 { // it is kept alive
		grant = text[i:]
	}
	if err := json.Unmarshal([]byte(grant), &g); err != nil {
		// The token was consumed while it was kept alive, or another program wrote the key. A new token is needed.
		return Grant{}, "", fmt.Errorf("%w: its grant cannot be read", ErrTokenUnknown)
	}
	return g, text, nil
}

func (t *TokenStore) redisKey(token string) string {
	sum := sha256.Sum256([]byte(token))
	return t.opts.Key(hex.EncodeToString(sum[:]))
}

// CleanToken removes white space from a presented token. The example in docs/specification.md contains spaces and line breaks.
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

// consumedMarker replaces the value of a token that was consumed while a stream kept it alive. keep_alive.lua describes
// the other values. The scripts must also run on miniredis with gopher-lua.
const consumedMarker = "-"

var (
	//go:embed scripts/keep_alive.lua
	keepAliveSource string
	//go:embed scripts/renew.lua
	renewSource string
	//go:embed scripts/consume.lua
	consumeSource string

	keepAliveScript = redisconn.NewScript(keepAliveSource)
	renewScript     = redisconn.NewScript(renewSource)
	consumeScript   = redisconn.NewScript(consumeSource)
)
