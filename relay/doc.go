// Package relay is the public vocabulary of hubrelay: notifications and their topics, the patterns and filters
// that select them, and the interfaces that sinks and migration drivers implement.
//
// The package imports only the standard library and does no I/O, so sinks and plugins can depend on it without
// depending on the daemon. Code that talks to Redis, HTTP or the file system belongs in another package.
package relay
