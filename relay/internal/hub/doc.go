// Package hub sends notifications to the websocket and event stream (SSE) clients of this node.
//
// It upgrades connections, keeps an index of who wants what, builds each frame once and hands the same bytes to every
// client. A client never delays another: what its socket does not take at once waits in a bounded queue of its own, and
// a client whose queue is full is closed.
//
// Who may connect is decided elsewhere: the hub checks the handshake of RFC 6455 and asks the caller for the rest. It
// knows no keys, tokens, configuration or Redis, and never imports sinks.
//
// # How a frame travels
//
// [Hub.Broadcast] finds the clients through the index (by hub and account, and where there are many topic patterns by
// topic), and writes to each idle socket itself without blocking: one system call and no goroutine. What the socket did
// not take goes to the client's queue, and a goroutine lives until that queue is empty again, gathering what is queued
// into few writes. Pings, pongs and close frames take the same way, so that they stand between frames only.
//
// # How a client comes back
//
// A cursor holds positions in the log. A client that brings one gets what followed it in chunks, from the log and from
// the recent history that each line of broadcasts keeps, and joins those who get broadcasts under the lock of its line, at
// the very place that it has reached.
package hub
