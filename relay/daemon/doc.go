// Package daemon assembles the relay: it opens Redis, starts all components in order and stops them in reverse. It
// is the only package that commands import from the relay.
//
// Only wiring belongs here. Decisions about events, connections or deliveries belong to the packages of these
// components.
package daemon
