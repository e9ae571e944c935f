// Package plugin delivers notifications to a program of somebody else, which runs in a process of its own.
//
// It reads the configuration and hands everything else to package plugins, the only one besides relay that it imports.
// Retries, schedules, limits and dead letters belong to relay/deliver and must not come in.
package plugin
