// Package publicapi implements the public HTTP API: tokens, the upgrade to a stream, publishing, the routes of
// modules, and the OpenAPI and AsyncAPI documents.
//
// It authorizes requests and defines the order of the checks. Every rejection is a [relay.Error] in the error envelope.
// The format of notifications belongs to relay/internal/ingest, and open streams belong to relay/internal/hub. This
// package uses both through small interfaces.
package publicapi
