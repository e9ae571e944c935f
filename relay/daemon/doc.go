// Package daemon wires the rooms into a daemon: it opens Redis, starts every part in order and stops them in reverse.
//
// Nothing but wiring belongs here: a decision about events, connections or deliveries has its own room.
package daemon
