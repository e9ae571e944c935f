// Package plugin delivers notifications to an external program in its own process.
//
// It passes its configuration, a host.Config, to package host, and imports only that and relay. Retries, schedules,
// limits and dead letters belong to relay/internal/delivery.
package plugin
