// Package auth knows who may do what: API keys, what each of them opens, and the one-time tokens that open a stream.
//
// Keys come from the configuration and live in a [Keyring]; tokens live hashed in Redis ([TokenStore]). The package speaks
// no HTTP beyond the value of an Authorization header and knows no configuration format. Deciding which route needs
// what belongs to relay/internal/publicapi.
package auth
