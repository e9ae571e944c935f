// Package relay is the vocabulary of hubrelay: notifications and their topics, the patterns and filters that
// select them, and the small interface that every sink implements.
//
// It imports the standard library only and does no I/O, so that authors of sinks and plugins can depend on it
// without depending on the daemon. Anything that talks to Redis, HTTP or a file belongs in another room.
package relay
