// Package client is a Go client for the public HTTP API of hubrelay and of servers with the same API. It gets tokens,
// publishes notifications, migrates instances, and listens to the stream with automatic reconnection. The hubrelay
// commands use it, and other programs may use it too.
//
// It imports package relay and nothing else of this module: no Redis, no configuration, no internals of the daemon.
package client
