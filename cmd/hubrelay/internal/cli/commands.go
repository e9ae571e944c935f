// Package cli contains the commands of hubrelay: flags, requests to a daemon, and output.
//
// [Commands] returns all of them. The daemon is in relay/daemon. Tables and colors belong to package term.
package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"slices"

	"github.com/spf13/cobra"

	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/term"
	"github.com/hubrelay/hubrelay/internal/suggest"
	"github.com/hubrelay/hubrelay/relay/daemon"
)

// Build describes the program.
type Build struct {
	Version string
	// ModuleVersion is the version of the Go module that plugins can download. It is "devel" if this build is not a
	// release.
	ModuleVersion string
	// Kinds are the sinks and the driver that a configuration can use.
	Kinds daemon.Kinds
}

// Commands returns all commands that the help lists.
func Commands(std term.Streams, build Build) []*cobra.Command {
	return []*cobra.Command{
		newInit(std, build), newServe(std, build), newDemo(std, build),
		newPublish(std), newListen(std),
		newMigrate(std), newJobs(std),
		newStatus(std), newConsole(std), newSinks(std, build), newSources(std), newConnections(std), newStreams(std), newAudit(std), newAccounts(std),
		newEvents(std), newDeliveries(std), newDeadletters(std), newQuarantine(std),
		newInventory(std),
		newConfig(std, build), newKeys(std), newTopics(std), newPlugins(std, build), newVersion(std, build),
	}
}

// WithUsageErrors returns check with its errors as usage errors.
func WithUsageErrors(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if err := check(cmd, args); err != nil {
			return NewUsageError(cmd, fmt.Errorf("%w: usage: %s", err, cmd.UseLine()))
		}
		return nil
	}
}

// exactNamedArgs accepts n arguments that are not empty. A shell can pass an empty argument, for example for `jobs show
// "$(…)"` if the inner command prints nothing.
func exactNamedArgs(n int) cobra.PositionalArgs {
	return WithUsageErrors(func(cmd *cobra.Command, args []string) error {
		if slices.Contains(args, "") {
			return errors.New("an argument is empty")
		}
		return cobra.ExactArgs(n)(cmd, args)
	})
}

// commandGroup returns a command that only contains other commands. Without one of them it prints its help.
func commandGroup(use, short string, children ...*cobra.Command) *cobra.Command {
	cmd := &cobra.Command{
		Use: use, Short: short, Args: RejectUnknownCommand,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(children...)
	return cmd
}

// RejectUnknownCommand rejects arguments of a command that only contains other commands, and suggests the closest
// command.
func RejectUnknownCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	hint := ""
	var names []string
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() {
			names = append(names, c.Name())
		}
	}
	if near := suggest.ClosestName(args[0], names); near != "" {
		hint = fmt.Sprintf(" (did you mean %q?)", near)
	}
	return NewUsageError(cmd, fmt.Errorf("unknown command %q%s", args[0], hint))
}

func newVersion(std term.Streams, build Build) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use: "version", Short: "Print the version", Args: WithUsageErrors(cobra.NoArgs),
		RunE: func(*cobra.Command, []string) error {
			if asJSON {
				return json.NewEncoder(std.Out).Encode(map[string]string{
					"version": build.Version,
					"go":      runtime.Version(),
				})
			}
			_, err := fmt.Fprintf(std.Out, "hubrelay %s (%s, %s/%s)\n", build.Version, runtime.Version(), runtime.GOOS,
				runtime.GOARCH)
			return err
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a JSON line")
	return cmd
}
