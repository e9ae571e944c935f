package cli

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/command"
	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/term"
	"github.com/hubrelay/hubrelay/relay/daemon"
)

func newConfig(std term.Streams, build Build) *cobra.Command {
	return command.NewGroup("config", "Check and show configurations", newConfigCheck(std, build),
		newConfigPrint(std, build), newConfigSchema(std, build))
}

// loadConfig loads a configuration and prints its problems to standard error, one per line.
func loadConfig(std term.Streams, build Build, file string) (*daemon.Config, error) {
	cfg, err := daemon.LoadConfig(file, std.Env, build.Kinds)
	return cfg, command.PrintProblems(std, err)
}

func newConfigCheck(std term.Streams, build Build) *cobra.Command {
	var file string
	var noPlugins bool
	cmd := &cobra.Command{
		Use:   "check -c FILE",
		Short: "Check a configuration file",
		Long: `Reads the file and the environment as serve would, with every file that they name, and prints each
problem with its line. It starts each plugin with its env, lets it check its config, and stops it; --no-plugins skips
this. It delivers nothing, and only plugins can open connections. A plugin that does not start or respond causes a
warning, because the relay would start without it. Insecure settings, such as a key that can be guessed, cause
warnings too. While the configuration has an error, neither plugins nor the inventory file are checked.`,
		Args: command.ExactNamedArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := loadConfig(std, build, file)
			if err != nil {
				return err
			}
			if !noPlugins {
				if err := preflightPlugins(cmd.Context(), std, cfg); err != nil {
					return err
				}
			}
			counts := term.Pluralize(len(cfg.Auth.Keys), "key") + ", " + term.Pluralize(len(cfg.Sinks), "sink")
			if file := cfg.Migration.InventoryFile; file != "" {
				servers, containers, err := daemon.CheckInventory(file)
				if err != nil {
					return command.PrintProblems(std, err)
				}
				counts += ", " + term.Pluralize(servers, "server") + ", " + term.Pluralize(containers, "container")
			}
			for _, w := range append(cfg.Warnings, cfg.SecurityWarnings()...) {
				_, _ = fmt.Fprintf(std.Err, "warning: %s\n", term.Sanitize(w.String()))
			}
			_, err = fmt.Fprintf(std.Out, "%s is valid: %s\n", file, counts)
			return err
		},
	}
	configFlag(cmd, &file)
	cmd.Flags().BoolVar(&noPlugins, "no-plugins", false, "start no plugins, for example if they are not installed")
	return cmd
}

// preflightTimeout limits the checks of all plugins. Each plugin also has its startup_timeout.
const preflightTimeout = time.Minute

// preflightPlugins lets all plugins check their configurations.
func preflightPlugins(ctx context.Context, std term.Streams, cfg *daemon.Config) error {
	ctx, cancel := context.WithTimeout(ctx, preflightTimeout)
	defer cancel()
	warnings, err := cfg.Preflight(ctx, func(string) bool { return true })
	cfg.Warnings = append(cfg.Warnings, warnings...)
	return command.PrintProblems(std, err)
}

func newConfigPrint(std term.Streams, build Build) *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use:   "print -c FILE",
		Short: "Print the effective configuration, without its secrets",
		Long: "Prints the configuration that serve would use: defaults, file and environment combined, without " +
			"secrets.",
		Args: command.ExactNamedArgs(0),
		RunE: func(*cobra.Command, []string) error {
			cfg, err := loadConfig(std, build, file)
			if err != nil {
				return err
			}
			return cfg.Print(std.Out)
		},
	}
	configFlag(cmd, &file)
	return cmd
}

func newConfigSchema(std term.Streams, build Build) *cobra.Command {
	return &cobra.Command{
		Use:   "schema",
		Short: "Print the JSON Schema of the configuration, for editors",
		Long: `Prints the JSON Schema of the configuration file. Save it, and name it in the first line of the file; editors then complete
and check the settings.`,
		Example: `  hubrelay config schema > hubrelay.schema.json
  # first line of hubrelay.yaml: # yaml-language-server: $schema=hubrelay.schema.json`,
		Args: command.ExactNamedArgs(0),
		RunE: func(*cobra.Command, []string) error {
			schema, err := daemon.ConfigSchema(build.Kinds)
			if err != nil {
				return err
			}
			_, err = std.Out.Write(schema)
			return err
		},
	}
}
