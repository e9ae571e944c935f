// Package jwt authenticates bearers of JSON Web Tokens (RFC 7519) of one issuer. A [Verifier] checks signature, issuer,
// audience and times, and maps claims to a key. [RemoteKeys] and [FileKeys] provide the public keys of the issuer as a
// JWKS (RFC 7517).
package jwt
