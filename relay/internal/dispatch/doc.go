// Package dispatch copies log entries to the queues of the sinks that match them. Each partition has one [Dispatcher],
// which matches every notification once against all sinks.
//
// Delivery from the queues belongs to packages queue and delivery. Sink types, configuration and Redis commands do not
// belong here.
package dispatch
