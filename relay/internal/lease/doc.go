// Package lease provides locks with an expiry in Redis, which distribute work to nodes, and the numbers of nodes.
//
// A lease only avoids double work. Everything that must not happen twice needs its own protection in Redis, because a
// process may be paused for longer than any lease.
package lease
