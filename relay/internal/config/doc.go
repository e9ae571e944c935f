// Package config reads the configuration of the daemon: defaults, then a YAML file, then environment variables.
//
// One schema, derived by reflection from the structs in config.go and in the sink kinds, drives the check of the
// file, the environment, the JSON Schema and the printed configuration, so they cannot disagree. Every error is
// reported with its position, the problem and the nearest valid name. Nothing is ignored silently.
//
// The package starts nothing and opens no socket. The meaning of a value for Redis, HTTP or a sink belongs to
// other packages; none of them imports this one, and the daemon passes the values on. This is the only package
// that uses koanf.
package config
