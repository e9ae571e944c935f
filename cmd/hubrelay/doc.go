// Command hubrelay relays the events of an infrastructure platform. Producers publish them over HTTP or through
// Redis; websocket clients and sinks receive them.
//
// This package has the root command, the exit codes and the list of builtin plugins. The commands are in
// internal/cli. The daemon is in relay/daemon.
package main
