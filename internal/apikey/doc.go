// Package apikey generates API keys and admin tokens, and hashes them.
//
// Storage and lookup of keys belong to relay/internal/auth.
package apikey
