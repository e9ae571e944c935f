// Package admin is what an operator sees of a running daemon and does with it: metrics, health, profiles, and the API
// for sinks and dead letters, on a listener of its own that is meant for loopback. Who reaches it may do everything.
//
// [Metrics] is the only place that knows Prometheus: the other rooms declare the few methods they call, and Metrics has
// them. [Sinks] is what the API needs of the others. Nothing here decides about notifications or deliveries.
package admin
