// Package hub sends notifications to the websocket and event stream (SSE) clients of this node.
//
// It upgrades connections, indexes clients by their subscriptions, builds each frame once, and sends the same bytes to
// all clients. A client never delays another one. Bytes that its socket does not accept at once wait in its own bounded
// queue, and a client with a full queue is closed.
//
// The caller authenticates clients. The hub checks the handshake of RFC 6455. It must not contain keys, tokens,
// configuration or Redis commands, and never imports sinks.
//
// # Broadcasts
//
// [Hub.Broadcast] finds the clients in the index (by hub, account and, with many topic patterns, by topic), and writes
// to each idle socket without blocking: one system call and no goroutine. What the socket does not accept is added to
// the client's queue, and a goroutine writes the queue in few writes until it is empty. Pings, pongs and close frames
// use the same path, so they are always between frames.
//
// # Replays
//
// A cursor contains positions in the log. A client with a cursor receives the following entries in chunks, from the log
// and from the recent history of its feed. It joins the broadcasts under the lock of the feed, exactly at the position
// that it has reached.
package hub
