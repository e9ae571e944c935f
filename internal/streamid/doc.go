// Package streamid reads and writes the opaque text that says up to where a client has seen the log.
//
// A cursor holds a position of one partition, for the pipeline of a hub, or one of every partition, for an account's.
// It is not signed: it only says where to begin, and what may be seen is decided by the key each time. What a
// position means belongs to relay/internal/backbone; no Redis here.
package streamid
