// Package cli contains the commands of hubrelay that run a daemon, check its configuration, or are clients of its public
// API. [Commands] returns all commands, including the ones of package admincli. The daemon is in relay/daemon.
package cli

import (
	"fmt"
	"runtime"

	"github.com/spf13/cobra"

	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/admincli"
	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/command"
	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/term"
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
	return append(
		admincli.Commands(std, newKeysNew(std), newSinksExplain(std, build)),
		newInit(std, build), newServe(std, build), newDemo(std, build),
		newPublish(std), newListen(std), newMigrate(std), newJobs(std),
		newConfig(std, build), newTopics(std), newPlugins(std, build), newVersion(std, build),
	)
}

func newVersion(std term.Streams, build Build) *cobra.Command {
	var output command.Output
	cmd := &cobra.Command{
		Use: "version", Short: "Print the version", Args: command.ExactNamedArgs(0),
		RunE: func(*cobra.Command, []string) error {
			if !output.IsTable() {
				return output.Print(std.Out, map[string]string{
					"version": build.Version,
					"go":      runtime.Version(),
				})
			}
			_, err := fmt.Fprintf(std.Out, "hubrelay %s (%s, %s/%s)\n", build.Version, runtime.Version(), runtime.GOOS,
				runtime.GOARCH)
			return err
		},
	}
	output.Register(cmd.Flags())
	return cmd
}
