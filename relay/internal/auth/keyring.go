package auth

import (
	"crypto/subtle"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/hubrelay/hubrelay/internal/apikey"
	"github.com/hubrelay/hubrelay/relay"
)

// Keyring holds the keys that work now. All methods may be called concurrently.
type Keyring struct {
	keys atomic.Pointer[[]Key]
	now  func() time.Time
}

// NewKeyring returns a ring with the keys. It fails where a key has no name, where two share a name, and where two
// share a secret, since it would be unclear which of them was presented.
func NewKeyring(keys []Key) (*Keyring, error) {
	r := &Keyring{now: time.Now}
	if err := r.Replace(keys); err != nil {
		return nil, err
	}
	return r, nil
}

// Replace puts other keys in place of the present ones, for instance after a key file changed. On an error (see
// [NewKeyring]) the present ones stay. Tokens of keys that are gone stop working.
func (r *Keyring) Replace(keys []Key) error {
	names := make(map[string]bool, len(keys))
	hashes := make(map[[32]byte]string, len(keys))
	for i := range keys {
		k := &keys[i]
		if k.Name == "" {
			return fmt.Errorf("key %d has no name", i+1)
		}
		if names[k.Name] {
			return fmt.Errorf("two keys have the name %q", k.Name)
		}
		if other, ok := hashes[k.Hash]; ok {
			return fmt.Errorf("the keys %q and %q have the same secret", other, k.Name)
		}
		names[k.Name], hashes[k.Hash] = true, k.Name
	}
	own := append([]Key(nil), keys...)
	r.keys.Store(&own)
	return nil
}

// Authenticate returns the key in the value of an Authorization header: "Bearer", spaces, the key. The error is
// 401.auth-invalid for a header that is empty or malformed or an unknown key, 401.auth-expired for an expired one.
func (r *Keyring) Authenticate(header string) (*Key, *relay.Error) {
	if header == "" {
		return nil, relay.NewError(relay.CodeAuthInvalid, "the header Authorization is missing; send Bearer and an API key")
	}
	scheme, secret, ok := strings.Cut(header, " ")
	secret = strings.Trim(secret, " \t")
	if !ok || secret == "" || !strings.EqualFold(scheme, "Bearer") {
		return nil, relay.NewError(relay.CodeAuthInvalid, "the header Authorization must be Bearer, a space and an API key")
	}
	k := r.find(apikey.HashOf(secret))
	if k == nil {
		return nil, relay.NewError(relay.CodeAuthInvalid, "the API key is not known here")
	}
	if k.Expired(r.now()) {
		return nil, expiredError(k)
	}
	return k, nil
}

// find compares with every key in constant time, so that the time taken tells nothing about near misses.
func (r *Keyring) find(hash [32]byte) *Key {
	keys := *r.keys.Load()
	found := -1
	for i := range keys {
		found = subtle.ConstantTimeSelect(subtle.ConstantTimeCompare(keys[i].Hash[:], hash[:]), i, found)
	}
	if found < 0 {
		return nil
	}
	return &keys[found]
}

// CurrentGrant says whether the key behind a token's grant still stands, and returns what the key grants on the same pipeline
// now: an operator may have narrowed it since. The error is 401.auth-invalid where the key is gone or has another
// secret, 401.auth-expired where it has expired, 403.wrong-hub where it no longer opens the grant's hub.
func (r *Keyring) CurrentGrant(g Grant) (Grant, *relay.Error) {
	keys := *r.keys.Load()
	for i := range keys {
		k := &keys[i]
		if k.Name != g.KeyName || k.id() != g.KeyID {
			continue
		}
		if k.Expired(r.now()) {
			return Grant{}, expiredError(k)
		}
		if g.Hub != "" && !k.CanReadHub(g.Hub) {
			return Grant{}, k.RequireHub(g.Hub)
		}
		return k.Grant(g.Hub), nil
	}
	return Grant{}, relay.NewError(relay.CodeAuthInvalid, "the API key that asked for this token no longer exists")
}

func expiredError(k *Key) *relay.Error {
	return relay.NewError(relay.CodeAuthExpired, "the API key expired at "+k.Expires.UTC().Format(time.RFC3339))
}
