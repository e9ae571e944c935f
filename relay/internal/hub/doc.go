// Package hub sends notifications to the websocket and server-sent event (SSE) clients of this node.
//
// It keeps an index of subscriptions, encodes each frame once, and sends the same bytes to every client. A client never
// delays another: what its socket does not accept at once waits in a bounded write queue, and a client whose queue is
// full is closed.
//
// Callers decide who may connect: the hub checks the handshake of RFC 6455 and calls back for the rest. It knows no
// keys, tokens, configuration or Redis, and never imports sinks. Encoding and parsing of frames belong to hub/frame,
// the handshake and system calls to hub/transport, and reads of the log to hub/history.
//
// # Broadcast
//
// [Hub.Broadcast] finds the clients in the index (by hub and account, and by topic if there are many patterns) and
// writes to each idle socket itself, without blocking: one system call and no goroutine. What the socket does not
// accept goes to the client's write queue. A goroutine then writes until that queue is empty, with few large writes.
// Pings, pongs and close frames use the same queue, so they are sent between other frames.
//
// # Replay
//
// A cursor holds positions in the log. A client with a cursor receives the entries after it in chunks, from the log and
// from the recent history of its feed. It joins the broadcasts under the lock of the feed, at the position that
// its replay has reached.
package hub
