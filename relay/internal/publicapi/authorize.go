package publicapi

import (
	"crypto/x509"
	"net/http"
	"slices"
	"time"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/auth"
)

// authenticate returns the key of the sender.
func (a *API) authenticate(r *http.Request) (*auth.Key, *relay.Error) {
	hub, _, err := hubID(r)
	if err != nil {
		hub = "" // an invalid one is rejected after authentication, and needs no decision until then
	}
	request := auth.Request{
		Authorization: r.Header["Authorization"], Hub: hub,
		Address: a.opt.TrustedProxies.Client(r),
	}
	if r.TLS != nil && len(r.TLS.VerifiedChains) > 0 {
		request.Certificate = r.TLS.VerifiedChains[0][0]
		request.CertificateExpires = expiryOf(r.TLS.VerifiedChains)
	}
	return a.opt.Authenticator.Authenticate(r.Context(), request)
}

// expiryOf returns the time until which at least one of the chains is valid. A chain is valid until its first certificate expires.
func expiryOf(chains [][]*x509.Certificate) (latest time.Time) {
	for _, chain := range chains {
		first := slices.MinFunc(chain, func(a, b *x509.Certificate) int { return a.NotAfter.Compare(b.NotAfter) })
		if first.NotAfter.After(latest) {
			latest = first.NotAfter
		}
	}
	return latest
}

// hubID returns the value of X-Hub-Id. ok reports whether the header is present.
func hubID(r *http.Request) (id string, ok bool, err *relay.Error) {
	switch values := r.Header["X-Hub-Id"]; len(values) {
	case 0:
		return "", false, nil
	case 1:
		return values[0], true, auth.CheckHubID(values[0])
	default:
		return "", false, relay.NewError(relay.CodeInvalidArgument, "the header X-Hub-Id was sent more than once; send it once")
	}
}

// authorize returns the key and the hub of the request. The key must have the capability, unless that is empty, and
// must be able to read the hub. hubPurpose describes the hub in an error.
func (a *API) authorize(r *http.Request, capability, hubPurpose string) (*auth.Key, string, *relay.Error) {
	key, err := a.authenticate(r)
	if err != nil {
		return nil, "", err
	}
	hub, err := a.authorizeKey(r, key, capability, hubPurpose)
	return key, hub, err
}

// authorizeKey is authorize for a key that was authenticated.
func (a *API) authorizeKey(r *http.Request, key *auth.Key, capability, hubPurpose string) (string, *relay.Error) {
	if capability != "" {
		if err := key.RequireCapability(capability); err != nil {
			return "", err
		}
	}
	return requireHub(r, key, hubPurpose)
}

// requireHub returns the value of X-Hub-Id. The header is required, and the key must be able to read the hub.
func requireHub(r *http.Request, key *auth.Key, hubPurpose string) (string, *relay.Error) {
	id, given, err := hubID(r)
	if err != nil {
		return "", err
	}
	if !given {
		return "", relay.NewError(relay.CodeMissingArgument, "the header X-Hub-Id is missing: it names "+hubPurpose)
	}
	return id, key.RequireHub(id)
}
