// Package jwt authenticates bearers of JSON Web Tokens (RFC 7519) of one issuer. A [Verifier] checks signature, issuer,
// audience and times, and maps claims to a key. [RemoteKeys] and [FileKeys] provide the public keys of the issuer as a
// JWKS (RFC 7517).
package jwt

import (
	"context"
	"crypto/sha256"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/json" // it is stricter than encoding/json
	"github.com/go-jose/go-jose/v4/jwt"
	"golang.org/x/time/rate"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/auth"
)

const (
	// maxToken is the maximum length of a token in bytes.
	maxToken = 16 << 10
	// maxSubject is the maximum length of the claim sub in bytes. It becomes a part of the name of the key.
	maxSubject = 200
	// leeway is the accepted difference between the clocks of the issuer and of this node.
	leeway = 30 * time.Second
	// cacheTime is the maximum time until the signature of a token is verified again, which ends the tokens of a
	// removed key.
	cacheTime = 5 * time.Minute
	// maxCached and maxCachedBytes bound the cache. Beyond them, it starts again.
	maxCached      = 10_000
	maxCachedBytes = 64 << 20

	logInterval = time.Minute
)

// Options are the settings of a [Verifier]. All fields are required.
type Options struct {
	Issuer, Audience string
	// Algorithms are the accepted signature algorithms, such as "RS256". All are asymmetric.
	Algorithms []string
	Keys       KeySource
	// AccountClaim, HubsClaim and CapabilitiesClaim are the names of the claims that contain what a bearer may do. The
	// account is a string. Hubs and capabilities are lists of strings, or strings separated by spaces.
	AccountClaim, HubsClaim, CapabilitiesClaim string
	Log                                        *slog.Logger
}

// Verifier verifies tokens and remembers the valid ones. It may be used concurrently.
type Verifier struct {
	opts           Options
	algorithms     []jose.SignatureAlgorithm
	now            func() time.Time
	unavailableLog rate.Sometimes

	mu    sync.Mutex
	cache map[[sha256.Size]byte]cachedKey // by the hash of the token
	bytes int                             // of the keys in cache
}

type cachedKey struct {
	key   *auth.Key
	until time.Time
}

// NewVerifier returns a verifier of the tokens of one issuer.
func NewVerifier(o Options) *Verifier {
	v := &Verifier{
		opts: o, now: time.Now, unavailableLog: rate.Sometimes{Interval: logInterval},
		cache: make(map[[sha256.Size]byte]cachedKey),
	}
	for _, a := range o.Algorithms {
		v.algorithms = append(v.algorithms, jose.SignatureAlgorithm(a))
	}
	return v
}

// Verify returns the key of a token. The error is 401.auth-invalid, 401.auth-expired, or
// 503.auth-unavailable if the keys of the issuer are unknown.
func (v *Verifier) Verify(ctx context.Context, token, _ string) (*auth.Key, *relay.Error) {
	hash := sha256.Sum256([]byte(token))
	now := v.now()
	v.mu.Lock()
	cached, ok := v.cache[hash]
	v.mu.Unlock()
	if ok && now.Before(cached.until) {
		return cached.key, nil
	}
	key, err := v.verifyToken(ctx, token, now)
	if err != nil {
		return nil, err
	}
	key.Hash = hash
	until := now.Add(cacheTime)
	if key.Expires.Before(until) {
		until = key.Expires
	}
	v.rememberKey(hash, cachedKey{key, until})
	return key, nil
}

func (v *Verifier) rememberKey(hash [sha256.Size]byte, c cachedKey) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if former, ok := v.cache[hash]; ok {
		v.bytes -= former.key.MemoryBytes()
	}
	v.bytes += c.key.MemoryBytes()
	if len(v.cache) >= maxCached || v.bytes > maxCachedBytes {
		clear(v.cache)
		v.bytes = c.key.MemoryBytes()
	}
	v.cache[hash] = c
}

func (v *Verifier) verifyToken(ctx context.Context, token string, now time.Time) (*auth.Key, *relay.Error) {
	if len(token) > maxToken {
		return nil, newInvalidError("is too long")
	}
	parsed, err := jwt.ParseSigned(token, v.algorithms)
	if err != nil || len(parsed.Headers) != 1 {
		return nil, newInvalidError("cannot be read, or its algorithm is not accepted")
	}
	keys, err := v.opts.Keys.Find(ctx, parsed.Headers[0].KeyID)
	if err != nil {
		v.unavailableLog.Do(func() {
			v.opts.Log.Error("JWTs cannot be verified", "issuer", v.opts.Issuer, "error",
				err)
		})
		return nil, relay.NewError(relay.CodeAuthUnavailable,
			"the keys of the issuer of JWTs cannot be fetched; try again later")
	}
	var claims json.RawMessage
	if !slices.ContainsFunc(keys, func(k jose.JSONWebKey) bool {
		return (k.Algorithm == "" || k.Algorithm == parsed.Headers[0].Algorithm) && parsed.Claims(k.Key, &claims) == nil
	}) {
		return nil, newInvalidError("is not signed by its issuer")
	}
	return v.readClaims(claims, now)
}

// ReadClaims returns the key of a token with the claims, a JSON object, as if its issuer had signed it. The error is
// 401.auth-invalid or 401.auth-expired.
func (v *Verifier) ReadClaims(claims []byte) (*auth.Key, *relay.Error) {
	return v.readClaims(claims, v.now())
}

func (v *Verifier) readClaims(claims []byte, now time.Time) (*auth.Key, *relay.Error) {
	var known jwt.Claims
	var all map[string]any
	if json.Unmarshal(claims, &known) != nil || json.Unmarshal(claims, &all) != nil {
		return nil, newInvalidError("has claims that are not a JSON object with the members of RFC 7519")
	}
	if err := v.checkClaims(&known, now); err != nil {
		return nil, err
	}
	return v.newKey(&known, all)
}

func (v *Verifier) checkClaims(c *jwt.Claims, now time.Time) *relay.Error {
	if c.Expiry == nil {
		return newInvalidError("has no expiry (exp)")
	}
	if year := c.Expiry.Time().Add(leeway).UTC().Year(); year < 0 || year > 9999 { // JSON cannot represent it
		return newInvalidError("has an expiry (exp) after the year 9999")
	}
	err := c.ValidateWithLeeway(jwt.Expected{
		Issuer: v.opts.Issuer, AnyAudience: jwt.Audience{v.opts.Audience}, Time: now,
	}, leeway)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, jwt.ErrExpired):
		return relay.NewError(relay.CodeAuthExpired, "the JWT has expired")
	case errors.Is(err, jwt.ErrInvalidIssuer):
		return newInvalidError("is of another issuer (iss)")
	case errors.Is(err, jwt.ErrInvalidAudience):
		return newInvalidError("is for another audience (aud)")
	default:
		return newInvalidError("is not valid yet (nbf, iat)")
	}
}

func (v *Verifier) newKey(c *jwt.Claims, all map[string]any) (*auth.Key, *relay.Error) {
	if c.Subject == "" || !auth.IsShortText(c.Subject, maxSubject) {
		return nil, newInvalidError("has no usable subject (sub)")
	}
	account, isString := all[v.opts.AccountClaim].(string)
	if _, given := all[v.opts.AccountClaim]; given && !isString {
		return nil, newInvalidError("has a claim " + v.opts.AccountClaim + " that is not a string")
	}
	if !auth.IsShortText(account, auth.MaxAccountID) {
		return nil, newInvalidError("has a claim " + v.opts.AccountClaim + " that is too long or has control characters")
	}
	hubs, hubsOK := readList(all[v.opts.HubsClaim])
	capabilities, capabilitiesOK := readList(all[v.opts.CapabilitiesClaim])
	if !hubsOK || !capabilitiesOK {
		return nil, newInvalidError("has a list of hubs or capabilities that is neither a list nor a string")
	}
	return &auth.Key{
		Name: "jwt:" + c.Subject, AccountID: account, Hubs: hubs, Capabilities: capabilities,
		Expires: c.Expiry.Time().Add(leeway), External: true,
	}, nil
}

// readList reads a list of strings, or strings separated by spaces. A missing claim is an empty list.
func readList(value any) (list []string, ok bool) {
	switch value := value.(type) {
	case nil:
		return nil, true
	case string:
		return strings.Fields(value), true
	case []any:
		for _, item := range value {
			text, ok := item.(string)
			if !ok {
				return nil, false
			}
			list = append(list, text)
		}
		return list, true
	default:
		return nil, false
	}
}

func newInvalidError(reason string) *relay.Error {
	return relay.NewError(relay.CodeAuthInvalid, "the JWT "+reason)
}
