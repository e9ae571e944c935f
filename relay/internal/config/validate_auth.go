package config

import (
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/hubrelay/hubrelay/relay"
)

// jwtAlgorithms are the signature algorithms of RFC 7518 and RFC 8037 with a public key. With a shared secret,
// everybody who can verify tokens could issue them.
var jwtAlgorithms = []string{
	"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA",
}

func (l *loader) checkJWT(j *JWT) {
	if !j.Enabled() {
		if j.Audience != "" || j.JWKSURL != "" || j.JWKSFile != "" {
			l.Error("auth.jwt.issuer", "is missing, so no token would be accepted",
				"set it to the claim iss of the tokens")
		}
		return
	}
	if j.Audience == "" {
		l.Error("auth.jwt.audience", "is missing: tokens for other services would be accepted",
			"set it to the claim aud of the tokens")
	}
	switch {
	case j.JWKSURL == "" && j.JWKSFile == "":
		l.Error("auth.jwt.jwks_url", "is missing", "set it to the URL of the issuer's JWKS, or set jwks_file")
	case j.JWKSURL != "" && j.JWKSFile != "":
		l.Error("auth.jwt.jwks_file", "conflicts with jwks_url", "set only one of them")
	case j.JWKSURL != "" && !isSecureURL(j.JWKSURL):
		l.Error("auth.jwt.jwks_url", "is not an https URL",
			"use https: an attacker who can change the response could issue tokens")
	}
	if len(j.Algorithms) == 0 {
		l.Error("auth.jwt.algorithms", "is empty", "name at least one, such as RS256")
	}
	for i, a := range j.Algorithms {
		if !slices.Contains(jwtAlgorithms, a) {
			l.Error(fmt.Sprintf("auth.jwt.algorithms[%d]", i),
				fmt.Sprintf("%q is not a signature algorithm with a public key", relay.Truncate(a, maxQuoted)),
				"use one of "+strings.Join(jwtAlgorithms, ", "))
		}
	}
	for name, claim := range map[string]string{
		"account_claim": j.AccountClaim, "hubs_claim": j.HubsClaim, "capabilities_claim": j.CapabilitiesClaim,
	} {
		if claim == "" {
			l.Error("auth.jwt."+name, "is empty", "name a claim, or remove the line")
		}
	}
}

// isSecureURL accepts https, and http on loopback.
func isSecureURL(text string) bool {
	u, err := url.Parse(text)
	if err != nil || u.Host == "" {
		return false
	}
	if u.Scheme == "https" {
		return true
	}
	addr, err := netip.ParseAddr(u.Hostname())
	return u.Scheme == "http" && (u.Hostname() == "localhost" || err == nil && addr.IsLoopback())
}

func (l *loader) checkForward(f *Forward) {
	if f.URL != "" && !isSecureURL(f.URL) {
		l.Error("auth.forward.url", "is not an https URL",
			"use https: credentials are sent there")
	}
	checkRange(l, "auth.forward.timeout", f.Timeout, 100*time.Millisecond, 30*time.Second)
	checkRange(l, "auth.forward.cache_ttl", f.CacheTTL, time.Second, time.Hour)
	checkRange(l, "auth.forward.stale_ttl", f.StaleTTL, 0, time.Hour)
}

func (l *loader) checkMTLS(c *Config) {
	if c.Auth.MTLS.CAFile != "" && !c.Server.TLS.Enabled() {
		l.Error("auth.mtls.ca_file", "has no effect without TLS", "set server.tls, or remove the line")
	}
	for i := range c.Auth.Keys {
		if c.Auth.Keys[i].SAN != "" && c.Auth.MTLS.CAFile == "" {
			l.Error(fmt.Sprintf("auth.keys[%d].san", i), "has no effect without client certificates",
				"set auth.mtls.ca_file")
		}
	}
}
