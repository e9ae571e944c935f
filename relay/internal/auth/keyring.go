package auth

import (
	"crypto/x509"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/hubrelay/hubrelay/internal/apikey"
	"github.com/hubrelay/hubrelay/relay"
)

// Keyring holds the known keys. All methods are safe for concurrent use.
type Keyring struct {
	keys atomic.Pointer[keySet]
	now  func() time.Time
}

// keySet is immutable. Secrets are looked up by their hash: the time of a lookup depends on hashes, which reveal
// nothing about similar secrets.
type keySet struct {
	byHash  map[apikey.Hash]*Key
	byGrant map[grantKey]*Key
}

// grantKey identifies the key of a [Grant].
type grantKey struct{ name, id string }

// NewKeyring returns a Keyring with the keys. It returns an error if a key has no name, if two keys have the same name,
// or if two keys have the same secret, because a request would not identify one of them.
func NewKeyring(keys []Key) (*Keyring, error) {
	r := &Keyring{now: time.Now}
	if err := r.Replace(keys); err != nil {
		return nil, err
	}
	return r, nil
}

// Replace replaces all keys, for instance after a key file changed. On an error (see [NewKeyring]) the keys do not
// change. Tokens of removed keys stop working.
func (kr *Keyring) Replace(keys []Key) error {
	names := make(map[string]bool, len(keys))
	set := &keySet{byHash: make(map[apikey.Hash]*Key, len(keys)), byGrant: make(map[grantKey]*Key, len(keys))}
	keys = slices.Clone(keys)
	for i := range keys {
		k := &keys[i]
		if k.Name == "" {
			return fmt.Errorf("key %d has no name", i+1)
		}
		if names[k.Name] && !k.Superseded {
			return fmt.Errorf("two keys have the name %q", k.Name)
		}
		if other := set.byHash[k.Hash]; other != nil {
			return fmt.Errorf("the keys %q and %q have the same secret", other.Name, k.Name)
		}
		names[k.Name] = names[k.Name] || !k.Superseded
		set.byHash[k.Hash] = k
		k.grantID = k.id()
		set.byGrant[grantKey{k.Name, k.grantID}] = k
	}
	kr.keys.Store(set)
	return nil
}

// bearerCredential returns the credential in the value of an Authorization header (RFC 6750, section 2.1).
func bearerCredential(header string) (string, *relay.Error) {
	if header == "" {
		return "", relay.NewError(relay.CodeAuthInvalid,
			"the header Authorization is missing; send Bearer and an API key")
	}
	scheme, secret, ok := strings.Cut(header, " ")
	secret = strings.Trim(secret, " \t")
	if !ok || secret == "" || !strings.EqualFold(scheme, "Bearer") {
		return "", relay.NewError(relay.CodeAuthInvalid,
			"the header Authorization must be Bearer, a space and an API key")
	}
	return secret, nil
}

// Find returns the key with a name, or nil. Of a rotated key it returns the new secret.
func (kr *Keyring) Find(name string) *Key {
	for _, k := range kr.keys.Load().byHash {
		if k.Name == name && !k.Superseded {
			return k
		}
	}
	return nil
}

// NewNotFoundError returns the error for a key that does not exist. It does not repeat the secret of a key, which an operator may
// have used as the name.
func (kr *Keyring) NewNotFoundError(name string) *relay.Error {
	if kr.findSecret(apikey.HashOf(name)) != nil {
		return relay.NewError(relay.CodeNoKey, "this is the secret of a key: use the name of the key")
	}
	return relay.NewError(relay.CodeNoKey, "no key has the name "+strconv.Quote(relay.Truncate(name, 200))+"; 'hubrelay keys list' shows all keys")
}

// CheckExpiry returns 401.auth-expired for a key that has expired.
func (kr *Keyring) CheckExpiry(k *Key) *relay.Error {
	if k.Expired(kr.now()) {
		return newExpiredError(k)
	}
	return nil
}

func (kr *Keyring) checkExpiry(k *Key) (*Key, *relay.Error) {
	if err := kr.CheckExpiry(k); err != nil {
		return nil, err
	}
	return k, nil
}

// findSecret returns the key with the hash of a secret, or nil.
func (kr *Keyring) findSecret(hash apikey.Hash) *Key {
	if k := kr.keys.Load().byHash[hash]; k != nil && k.SAN == "" {
		return k
	}
	return nil
}

// authenticateCertificate returns the key with a SAN of the certificate, which may be nil. The key expires with the
// certificate.
func (kr *Keyring) authenticateCertificate(c *x509.Certificate, expires time.Time) (*Key, *relay.Error) {
	if c == nil {
		return nil, relay.NewError(relay.CodeAuthInvalid,
			"the header Authorization is missing; send Bearer and an API key")
	}
	var uris []string
	for _, u := range c.URIs {
		uris = append(uris, u.String())
	}
	// A name of one kind must not pass for a name of another: a CA that issues any DNS name may restrict URIs.
	names := slices.Concat(filterSANs(c.DNSNames, sanDNS), filterSANs(c.EmailAddresses, sanEmail), filterSANs(uris, sanURI))
	for _, name := range names {
		if k := kr.keys.Load().byHash[HashOfSAN(name)]; k != nil && k.SAN != "" {
			return kr.checkExpiry(k.limitToCertificate(expires))
		}
	}
	return nil, relay.NewError(relay.CodeAuthInvalid, "no name (SAN) of the client certificate is known here")
}

// sanKind is the kind of a subject alternative name, as its text shows it.
type sanKind int

const (
	sanDNS sanKind = iota
	sanEmail
	sanURI
)

func kindOfSAN(name string) sanKind {
	switch {
	case strings.Contains(name, ":"):
		return sanURI
	case strings.Contains(name, "@"):
		return sanEmail
	default:
		return sanDNS
	}
}

func filterSANs(names []string, kind sanKind) []string {
	return slices.DeleteFunc(slices.Clone(names), func(name string) bool { return kindOfSAN(name) != kind })
}

// CurrentGrant returns the current grant of the key of g for the same stream. An operator may have restricted the key
// since g was issued. The error is 401.auth-invalid if the key was removed or has another secret, 401.auth-expired if
// it has expired, and 403.wrong-hub if it may no longer read the hub of g. The stream parameters of g are kept.
func (kr *Keyring) CurrentGrant(g Grant) (Grant, *relay.Error) {
	k := kr.keys.Load().byGrant[grantKey{g.KeyName, g.KeyID}]
	if k != nil {
		k = k.limitToCertificate(g.CertificateExpires)
	}
	switch {
	case k == nil:
		return Grant{}, relay.NewError(relay.CodeAuthInvalid, "the API key of this token no longer exists; get a token with another key")
	case k.Expired(kr.now()):
		return Grant{}, newExpiredError(k)
	case g.Hub != "" && !k.CanReadHub(g.Hub):
		return Grant{}, k.RequireHub(g.Hub)
	default:
		current := k.Grant(g.Hub)
		current.Stream = g.Stream
		return current, nil
	}
}

func newExpiredError(k *Key) *relay.Error {
	what := "API key"
	if k.Expires.Equal(k.CertificateExpires) {
		what = "client certificate"
	}
	return relay.NewError(relay.CodeAuthExpired, "the "+what+" expired at "+k.Expires.UTC().Format(time.RFC3339))
}
