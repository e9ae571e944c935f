package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/command"
	"github.com/hubrelay/hubrelay/plugins/directory"
	"github.com/hubrelay/hubrelay/plugins/host"
	"github.com/hubrelay/hubrelay/plugins/print"
)

// builtinPlugins returns the plugins in this program by their names after "builtin:". A new one is one directory and
// one line here.
func builtinPlugins() map[string]func() error {
	return map[string]func() error{
		directory.Name: serveDirectory,
		print.Name:     print.Serve,
	}
}

// newBuiltinPlugin returns the command that the daemon starts as the process of a builtin plugin.
func newBuiltinPlugin() *cobra.Command {
	return &cobra.Command{
		Use: host.BuiltinCommand + " NAME", Hidden: true, Args: command.WithUsageErrors(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			serve, ok := builtinPlugins()[args[0]]
			if !ok {
				return command.NewUsageError(cmd, fmt.Errorf("unknown plugin %q", args[0]))
			}
			return serve()
		},
	}
}

func serveDirectory() error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find the executable for agents: %w", err)
	}
	return directory.Serve(directory.Options{
		AgentCommand: []string{self, directory.AgentCommand},
		Relay:        os.Getenv(host.RelayVariable),
	})
}

// newAgent returns the command that builtin:directory starts as the agent of an instance.
func newAgent() *cobra.Command {
	return &cobra.Command{
		Use:    directory.AgentCommand + " PATH INSTANCE LEASE STEADY RELAY",
		Hidden: true, Args: command.WithUsageErrors(cobra.ExactArgs(5)),
		RunE: func(cmd *cobra.Command, args []string) error { return directory.RunAgent(cmd.Context(), args) },
	}
}
