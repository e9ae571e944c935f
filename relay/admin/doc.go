// Package admin is what an operator sees of a running daemon: metrics, health, profiles, on a listener of its own that
// is meant for loopback.
//
// [Metrics] is the only place that knows Prometheus: the other rooms declare the few methods they call, and Metrics has
// them. Nothing here decides about notifications or deliveries.
package admin
