// Command hubrelay relays the events of an infrastructure platform: published over HTTP or through Redis, they reach
// websocket clients and sinks.
//
// Here are the subcommands, what they print, and the explicit list of sink kinds. What the daemon does is in the
// rooms under relay, and how they are wired in relay/daemon.
package main
