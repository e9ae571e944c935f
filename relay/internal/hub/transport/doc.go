// Package transport turns HTTP requests into connections that the hub writes to: the websocket handshake of RFC 6455
// with negotiation of permessage-deflate, hijacked HTTP/1.1 connections, and HTTP/2 streams. It also has the system
// calls for writes that do not block.
//
// It knows neither frames nor subscriptions, and decides nothing about who may connect.
package transport
