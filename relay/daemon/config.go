package daemon

import (
	"github.com/hubrelay/hubrelay/relay/internal/config"
)

// Config is a valid configuration; see [LoadConfig].
type Config = config.Config

// SinkConfig is the configuration of one sink.
type SinkConfig = config.Sink

// Kinds lists the sinks and the driver that a configuration may use.
type Kinds = config.Kinds

// AdminEndpoint is the address of the admin API of a running daemon.
type AdminEndpoint = config.AdminEndpoint

// LoadConfig reads a configuration file and the environment variables that start with HUBRELAY_. Invalid values
// are returned as [yamldoc.Problems].
func LoadConfig(path string, environ []string, kinds Kinds) (*Config, error) {
	return config.Load(path, environ, kinds)
}

// LoadAdminEndpoint loads only the settings that a command needs to find the running daemon. It ignores errors in
// other settings, and secrets or certificates that only the daemon can read. An empty path means the defaults.
func LoadAdminEndpoint(path string, environ []string) (AdminEndpoint, error) {
	return config.LoadAdminEndpoint(path, environ)
}

// ConfigSchema returns the JSON Schema of the configuration.
func ConfigSchema(kinds Kinds) ([]byte, error) { return config.JSONSchema(kinds) }
