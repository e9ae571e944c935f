// Package config reads the configuration of the daemon: defaults, then a YAML file, then the environment.
//
// One schema, derived by reflection from the structs in config.go and from those of the sink kinds, drives the check
// of the file, the environment, the JSON Schema and the printed configuration, so that they cannot disagree. Every
// mistake is reported with its place, what is wrong and the nearest valid name; nothing is ignored silently.
//
// The package starts nothing and opens no socket: it turns text into values. What the values mean for Redis, HTTP or a
// sink belongs to those rooms, and none of them imports this one: app and cmd carry the values over. It is the only
// package that knows koanf.
package config
