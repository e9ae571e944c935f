package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/term"
	"github.com/hubrelay/hubrelay/internal/yamldoc"
	"github.com/hubrelay/hubrelay/relay/daemon"
	"github.com/spf13/cobra"
)

func newConfig(std term.Streams, build Build) *cobra.Command {
	return commandGroup("config", "Check and show configurations", newConfigCheck(std, build),
		newConfigPrint(std, build), newConfigSchema(std, build))
}

// loadConfig loads a configuration. What the user got wrong is printed one problem a line, like a compiler does.
func loadConfig(std term.Streams, build Build, file string) (*daemon.Config, error) {
	cfg, err := daemon.LoadConfig(file, std.Env, build.Kinds)
	return cfg, printProblems(std, err)
}

// loadInventory reads the inventory file of a configuration and prints its mistakes. It returns nil if there is no
// such file.
func loadInventory(std term.Streams, file string) (*daemon.Inventory, error) {
	inventory, err := daemon.LoadInventory(file)
	return inventory, printProblems(std, err)
}

// printProblems prints what the user got wrong in a file, and returns every other error as it is.
func printProblems(std term.Streams, err error) error {
	var problems yamldoc.Problems
	if !errors.As(err, &problems) {
		return err
	}
	for _, p := range problems {
		_, _ = fmt.Fprintln(std.Err, term.Sanitize(p.String()))
	}
	return ErrReported
}

func newConfigCheck(std term.Streams, build Build) *cobra.Command {
	var file string
	var noPlugins bool
	cmd := &cobra.Command{
		Use:   "check -c FILE",
		Short: "Say whether a configuration is good, and where it is not",
		Long: `Reads the file and the environment as serve would, with every file they name, and prints each mistake with its
place. Each plugin is started, with its env, to say what is wrong with its config, and ended; --no-plugins leaves that out.
Nothing is delivered, and none of hubrelay's own dials anybody. One that cannot be started or asked is a warning, since
the daemon would start without it.`,
		Args: WithUsageErrors(cobra.NoArgs),
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
			inventory, err := loadInventory(std, cfg.Migration.InventoryFile)
			if err != nil {
				return err
			}
			for _, w := range cfg.Warnings {
				_, _ = fmt.Fprintf(std.Err, "warning: %s\n", term.Sanitize(w.String()))
			}
			known := term.Pluralize(len(cfg.Auth.Keys), "key") + ", " + term.Pluralize(len(cfg.Sinks), "sink")
			if inventory != nil {
				known += ", " + term.Pluralize(len(inventory.Servers), "server") + ", " +
					term.Pluralize(len(inventory.Containers), "container")
			}
			_, err = fmt.Fprintf(std.Out, "%s is good: %s\n", file, known)
			return err
		},
	}
	configFlag(cmd, &file)
	cmd.Flags().BoolVar(&noPlugins, "no-plugins", false, "start no plugin, as where they are not installed")
	return cmd
}

// preflightTime bounds the trial of all plugins; each has its startup_timeout besides.
const preflightTime = time.Minute

// preflightPlugins has all plugins say what is wrong with their configurations.
func preflightPlugins(ctx context.Context, std term.Streams, cfg *daemon.Config) error {
	ctx, cancel := context.WithTimeout(ctx, preflightTime)
	defer cancel()
	warnings, err := cfg.Preflight(ctx, func(string) bool { return true })
	cfg.Warnings = append(cfg.Warnings, warnings...)
	return printProblems(std, err)
}

func newConfigPrint(std term.Streams, build Build) *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use:   "print -c FILE",
		Short: "Print the effective configuration, without its secrets",
		Long:  "Prints what serve would run with: defaults, file and environment taken together, secrets left out.",
		Args:  WithUsageErrors(cobra.NoArgs),
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
		Args:  WithUsageErrors(cobra.NoArgs),
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
