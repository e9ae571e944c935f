// Package apikey generates API keys and admin tokens, and hashes them.
//
// Storage and lookup of keys belong to relay/internal/auth.
package apikey

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
)

// Prefixes let secret scanners recognize a leaked key or token.
const (
	keyPrefix        = "hrk_"
	adminTokenPrefix = "hra_"
)

// Hash is the SHA-256 of a key or token. The relay stores no secret, only its hash.
type Hash = [sha256.Size]byte

// New returns a new random API key: "hrk_" and 32 random bytes in base64url.
func New() string { return newSecret(keyPrefix) }

// NewAdminToken returns a new random token for the admin listener: "hra_" and 32 random bytes in base64url.
func NewAdminToken() string { return newSecret(adminTokenPrefix) }

func newSecret(prefix string) string {
	var b [32]byte
	_, _ = rand.Read(b[:]) // never returns an error: crypto/rand crashes the program instead
	return prefix + base64.RawURLEncoding.EncodeToString(b[:])
}

// HashOf returns the hash of a key or token.
func HashOf(secret string) Hash { return sha256.Sum256([]byte(secret)) }

// FormatHash formats a hash for key_sha256 and token_sha256: 64 lower-case hexadecimal digits.
func FormatHash(h Hash) string { return hex.EncodeToString(h[:]) }
