// Package httpserver is the HTTP server of the public, health and admin listeners. It sets all timeouts, reloads
// changed TLS certificates, writes the error envelope, and recovers panics of handlers.
//
// Routes do not belong here. They are in relay/internal/publicapi and relay/internal/adminserver.
package httpserver
