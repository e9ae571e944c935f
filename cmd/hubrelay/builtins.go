package main

import (
	"fmt"
	"maps"
	"slices"

	"github.com/spf13/cobra"

	"github.com/hubrelay/hubrelay/plugins"
	"github.com/hubrelay/hubrelay/plugins/print"
)

// builtinPlugins are the plugins that come with the daemon, by the name behind "builtin:". A new one is one folder and
// one line here.
func builtinPlugins() map[string]func() error {
	return map[string]func() error{
		print.Name: print.Serve,
	}
}

func builtinNames() []string { return slices.Sorted(maps.Keys(builtinPlugins())) }

// newBuiltinPlugin is how the daemon runs a plugin of its own, in a process of its own. Nobody else calls it.
func newBuiltinPlugin() *cobra.Command {
	return &cobra.Command{
		Use: plugins.BuiltinCommand + " NAME", Hidden: true, Args: checked(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			serve, ok := builtinPlugins()[args[0]]
			if !ok {
				return newUsageError(cmd, fmt.Errorf("there is no plugin %q", args[0]))
			}
			return serve()
		},
	}
}
