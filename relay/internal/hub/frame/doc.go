// Package frame encodes what the hub sends to its clients and parses what websocket clients send: frames of RFC 6455,
// events of a server-sent event (SSE) stream, and messages compressed with permessage-deflate (RFC 7692).
//
// It knows neither connections nor subscriptions. The handshake belongs to package transport.
package frame
