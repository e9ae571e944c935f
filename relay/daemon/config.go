package daemon

import (
	"fmt"

	"github.com/hubrelay/hubrelay/internal/yamldoc"
	"github.com/hubrelay/hubrelay/relay/internal/config"
	"github.com/hubrelay/hubrelay/relay/internal/delivery"
	"github.com/hubrelay/hubrelay/relay/internal/migration"
)

// Config is a complete, valid configuration. [LoadConfig] returns one.
type Config = config.Config

// SinkConfig is the part of a configuration that all types of sinks share.
type SinkConfig = config.Sink

// Kinds are the sinks and the driver that a configuration may name.
type Kinds = config.Kinds

// AdminEndpoint says where a running daemon serves its admin API.
type AdminEndpoint = config.AdminEndpoint

// Inventory is the content of a valid inventory file.
type Inventory = migration.File

// LoadConfig reads a configuration file and the environment variables that begin with HUBRELAY_. If something is wrong, the
// error is a [yamldoc.Problems] with one problem for each mistake.
func LoadConfig(path string, environ []string, kinds Kinds) (*Config, error) {
	return config.Load(path, environ, kinds)
}

// LoadAdminEndpoint reads only what a command needs to find the running daemon. It ignores mistakes elsewhere, and secrets and
// certificates that only the daemon can read. An empty path means the defaults.
func LoadAdminEndpoint(path string, environ []string) (AdminEndpoint, error) {
	return config.LoadAdminEndpoint(path, environ)
}

// ConfigSchema returns the JSON Schema of the configuration.
func ConfigSchema(kinds Kinds) ([]byte, error) { return config.JSONSchema(kinds) }

// LoadInventory reads an inventory file. It returns nil if the path is empty. Mistakes are a [yamldoc.Problems].
func LoadInventory(path string) (*Inventory, error) {
	if path == "" {
		return nil, nil
	}
	return migration.ReadFile(path)
}

// ReadImport reads a file for an import into the inventory and checks it. Mistakes are a [yamldoc.Problems].
func ReadImport(path string) ([]byte, error) {
	data, err := yamldoc.ReadBounded(path, migration.MaxFile)
	if err != nil {
		return nil, fmt.Errorf("%s cannot be read: %s", path, yamldoc.OpenErrorReason(err))
	}
	_, err = migration.ParseImport(path, data)
	return data, err
}

// DeadLetterReasons are the words with which the reason of a dead letter may begin.
func DeadLetterReasons() []string {
	return []string{delivery.ReasonPermanent, delivery.ReasonExhausted}
}
