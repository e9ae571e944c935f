// Package publicapi is the public HTTP interface: the token, the websocket's handshake, publishing, and the documents that
// describe them.
//
// It decides who may do what and in which order a request can be refused; every refusal is a [relay.Error] in the
// envelope. What a notification looks like belongs to relay/internal/ingest, what happens on an open stream to relay/internal/hub: both
// are seen through the small interfaces in this package.
package publicapi
