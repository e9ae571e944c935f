// Package plugin delivers notifications to a program of somebody else, which runs in a process of its own.
//
// It hands its configuration, which is that of plugins/settings, to package plugins, and imports nothing else but relay.
// Retries, schedules, limits and dead letters belong to relay/internal/delivery and must not come in.
package plugin
