// Package auth implements API keys, their grants, and the single-use tokens that open a stream.
//
// A [Keyring] holds the keys of the configuration. A [TokenStore] stores hashed tokens in Redis. HTTP, except the value
// of an Authorization header, and configuration formats do not belong here. relay/internal/publicapi decides which
// route needs which capability.
package auth

import (
	"context"
	"crypto/x509"
	"net/netip"
	"strings"
	"time"

	"github.com/hubrelay/hubrelay/internal/apikey"
	"github.com/hubrelay/hubrelay/relay"
)

// Verifier verifies credentials of another system. It is called concurrently.
type Verifier interface {
	// Verify returns a key with External set. hub is the requested hub, or empty. The error is 401.auth-invalid,
	// 401.auth-expired, or 503.auth-unavailable if the other system is unreachable.
	Verify(ctx context.Context, credential, hub string) (*Key, *relay.Error)
}

// ForwardVerifier verifies credentials by asking another system. It is called concurrently.
type ForwardVerifier interface {
	// Verify is like [Verifier.Verify] for a client at addr. It also returns 429.rate-limiting for an address whose
	// credentials were rejected too often.
	Verify(ctx context.Context, credential, hub string, addr netip.Addr) (*Key, *relay.Error)
	// HasChanged reports whether the credential of a grant may have changed since it was verified.
	HasChanged(g *Grant) bool
}

// Request contains the credentials of a request.
type Request struct {
	// Authorization are the values of the header Authorization.
	Authorization []string
	// Hub is the header X-Hub-Id, or empty.
	Hub string
	// Certificate is the verified client certificate, or nil. CertificateExpires is the time until which it is valid with its
	// CAs: a connection may last longer.
	Certificate        *x509.Certificate
	CertificateExpires time.Time
	// Address is the address of the client. See [Key.Networks].
	Address netip.Addr
}

// AuthenticatorOptions are the ways to authenticate. Keys is required.
type AuthenticatorOptions struct {
	Keys *Keyring
	// JWT verifies credentials with two dots. Nil treats them like others.
	JWT Verifier
	// Forward verifies all other credentials. Nil rejects them.
	Forward ForwardVerifier
}

// Authenticator identifies the senders of requests. The order is: a key in Authorization, then a JWT, then the forward
// verifier, and without Authorization the client certificate. It may be used concurrently.
type Authenticator struct{ opts AuthenticatorOptions }

// NewAuthenticator returns an authenticator.
func NewAuthenticator(o AuthenticatorOptions) *Authenticator { return &Authenticator{o} }

// Authenticate returns the key of the sender. The error is 401.auth-invalid for missing, malformed or unknown
// credentials, or for an address that the key does not allow; 401.auth-expired for expired ones; and
// 503.auth-unavailable if another system decides and is unreachable.
func (a *Authenticator) Authenticate(ctx context.Context, r Request) (*Key, *relay.Error) {
	key, err := a.findKey(ctx, r)
	if err != nil {
		return nil, err
	}
	if !key.allowsAddress(r.Address) {
		return nil, relay.NewError(relay.CodeAuthInvalid, "the API key must not be used from this address: use it from one of its networks")
	}
	key.markUsed(a.opts.Keys.now())
	return key, nil
}

// Identify returns the key of a credential, from any address, and does not count as a use of the key. hub is the
// requested hub, or empty. The error is like that of [Authenticator.Authenticate].
func (a *Authenticator) Identify(ctx context.Context, credential, hub string) (*Key, *relay.Error) {
	return a.findKey(ctx, Request{Authorization: []string{"Bearer " + credential}, Hub: hub})
}

func (a *Authenticator) findKey(ctx context.Context, r Request) (*Key, *relay.Error) {
	if len(r.Authorization) > 1 {
		return nil, relay.NewError(relay.CodeAuthInvalid, "the header Authorization was sent more than once; send it once")
	}
	if len(r.Authorization) == 0 {
		return a.opts.Keys.authenticateCertificate(r.Certificate, r.CertificateExpires)
	}
	credential, err := bearerCredential(r.Authorization[0])
	if err != nil {
		return nil, err
	}
	if k := a.opts.Keys.findSecret(apikey.HashOf(credential)); k != nil {
		return a.opts.Keys.checkExpiry(k)
	}
	switch {
	case a.opts.JWT != nil && strings.Count(credential, ".") == 2:
		return a.opts.JWT.Verify(ctx, credential, r.Hub)
	case a.opts.Forward != nil:
		return a.opts.Forward.Verify(ctx, credential, r.Hub, r.Address)
	default:
		return nil, relay.NewError(relay.CodeAuthInvalid, "the API key is not known here")
	}
}

// CurrentGrant returns the current grant of the key of g for the same stream. See [Keyring.CurrentGrant]. The grant
// of an external credential ends when it expires, when the other system reports a change, and when its kind is no
// longer accepted.
func (a *Authenticator) CurrentGrant(g Grant) (Grant, *relay.Error) {
	if !g.External {
		return a.opts.Keys.CurrentGrant(g)
	}
	if !a.opts.Keys.now().Before(g.Expires) {
		return Grant{}, relay.NewError(relay.CodeAuthExpired, "the credential of "+g.KeyName+" expired at "+
			g.Expires.UTC().Format(time.RFC3339))
	}
	isForwarded := !g.VerifiedAt.IsZero()
	switch {
	case isForwarded && a.opts.Forward == nil, !isForwarded && a.opts.JWT == nil:
		return Grant{}, relay.NewError(relay.CodeAuthInvalid, "credentials such as that of "+g.KeyName+
			" are no longer accepted")
	case isForwarded && a.opts.Forward.HasChanged(&g):
		return Grant{}, relay.NewError(relay.CodeAuthInvalid, "the credential of "+g.KeyName+
			" has changed; authenticate again")
	}
	return g, nil
}
