// Package settings is what an operator writes for a plugin in the configuration: keys, defaults, checks, and what package
// plugins makes of it. Sinks of type plugin and the driver of migrations have the same.
//
// What a plugin does, and when it is started, must not come in.
package settings
