// Package httpserver is what the public and the admin listener share: a server with every time-out set, certificates that
// are read again when their files change, the error envelope, and panics that end one request and not the daemon.
//
// It knows no route. What a path means belongs to relay/internal/publicapi and relay/internal/adminserver.
package httpserver
