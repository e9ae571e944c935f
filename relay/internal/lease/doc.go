// Package lease provides locks with an expiry in Redis, by which nodes share work, and the numbers of the nodes.
//
// A lease only avoids double work. Everything that must not happen twice needs its own protection in Redis, because a
// process may be paused for longer than any lease.
package lease
