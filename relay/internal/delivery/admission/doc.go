// Package admission decides when an attempt of a sink may start.
//
// Fresh deliveries and retries share the circuit breaker, the rate limit, the cooldown that a destination has asked
// for, and the concurrency limit. Fresh deliveries wait in order. Retries are claimed only for capacity that is
// reserved, so a claim never waits. If both want capacity, they get it in turns.
//
// The package knows neither deliveries nor their outcomes.
package admission
