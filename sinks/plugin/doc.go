// Package plugin delivers notifications to an external program that runs in its own process.
//
// It passes its configuration, a host.Config, to package host. Apart from package relay it imports nothing else.
// Retries, schedules, limits and dead letters belong to relay/internal/delivery and must not come in.
package plugin
