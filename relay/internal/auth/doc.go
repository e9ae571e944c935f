// Package auth implements API keys, their grants, and the single-use tokens that open a stream.
//
// A [Keyring] holds the keys of the configuration. A [TokenStore] stores hashed tokens in Redis. HTTP, except the value
// of an Authorization header, and configuration formats do not belong here. relay/internal/publicapi decides which
// route needs which capability.
package auth
