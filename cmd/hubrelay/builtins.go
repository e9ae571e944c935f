package main

import (
	"fmt"
	"os"

	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/cli"
	"github.com/hubrelay/hubrelay/plugins/directory"
	"github.com/hubrelay/hubrelay/plugins/host"
	"github.com/hubrelay/hubrelay/plugins/print"
	"github.com/spf13/cobra"
)

// builtinPlugins are the plugins that come with the daemon, by the name behind "builtin:". A new one is one folder and
// one line here.
func builtinPlugins() map[string]func() error {
	return map[string]func() error{
		directory.Name: serveDirectory,
		print.Name:     print.Serve,
	}
}

// newBuiltinPlugin is how the daemon runs a plugin of its own, in a process of its own. Nobody else calls it.
func newBuiltinPlugin() *cobra.Command {
	return &cobra.Command{
		Use: host.BuiltinCommand + " NAME", Hidden: true, Args: cli.WithUsageErrors(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			serve, ok := builtinPlugins()[args[0]]
			if !ok {
				return cli.NewUsageError(cmd, fmt.Errorf("there is no plugin %q", args[0]))
			}
			return serve()
		},
	}
}

func serveDirectory() error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find the program's own file, which keeps instances running: %w", err)
	}
	return directory.Serve(directory.Options{
		AgentCommand: []string{self, directory.AgentCommand},
		Relay:        os.Getenv(host.RelayVariable),
	})
}

// newAgent is how builtin:directory runs the command of an instance. Nobody else calls it.
func newAgent() *cobra.Command {
	return &cobra.Command{
		Use: directory.AgentCommand + " PATH INSTANCE LEASE STEADY RELAY", Hidden: true, Args: cli.WithUsageErrors(
			cobra.ExactArgs(5)),
		RunE: func(cmd *cobra.Command, args []string) error { return directory.RunAgent(cmd.Context(), args) },
	}
}
