package cli

import (
	"errors"
	"fmt"
	"slices"

	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/term"
	"github.com/hubrelay/hubrelay/relay/daemon"
	"github.com/spf13/cobra"
)

// Build is what the commands know about the program that they are part of.
type Build struct {
	Version string
	// ModuleVersion is the version from which others can download this program's module, "devel" if there is none.
	ModuleVersion string
	// Kinds are the sinks and the driver that a configuration may name.
	Kinds daemon.Kinds
}

// Commands returns all visible commands.
func Commands(std term.Streams, build Build) []*cobra.Command {
	return []*cobra.Command{
		newInit(std, build), newServe(std, build), newDemo(std, build),
		newPublish(std), newListen(std),
		newMigrate(std), newJobs(std),
		newSinks(std, build), newSources(std), newConnections(std), newDeadletters(std), newInventory(std),
		newConfig(std, build), newKeys(std), newTopics(std), newPlugins(std, build), newVersion(std, build),
	}
}

// WithUsageErrors gives cobra's argument checks our exit code.
func WithUsageErrors(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if err := check(cmd, args); err != nil {
			return NewUsageError(cmd, fmt.Errorf("%w: write %s", err, cmd.UseLine()))
		}
		return nil
	}
}

// exactNamedArgs takes n arguments, none of them empty: they name things, such as `jobs show "$(…)"` where that
// prints nothing.
func exactNamedArgs(n int) cobra.PositionalArgs {
	return WithUsageErrors(func(cmd *cobra.Command, args []string) error {
		if slices.Contains(args, "") {
			return errors.New("an argument is empty")
		}
		return cobra.ExactArgs(n)(cmd, args)
	})
}

// commandGroup is a command that only holds others: without one of them it prints its help.
func commandGroup(use, short string, children ...*cobra.Command) *cobra.Command {
	cmd := &cobra.Command{
		Use: use, Short: short, Args: RejectUnknownCommand,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(children...)
	return cmd
}

// RejectUnknownCommand refuses words behind a command that only holds others, naming what was probably meant.
func RejectUnknownCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	hint := ""
	cmd.SuggestionsMinimumDistance = 2
	if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
		hint = fmt.Sprintf(", the nearest is %q", near[0])
	}
	return NewUsageError(cmd, fmt.Errorf("unknown command %q%s", args[0], hint))
}
