package main

import (
	"maps"
	"os"
	"slices"

	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/cli"
	"github.com/hubrelay/hubrelay/plugins/host"
	"github.com/hubrelay/hubrelay/relay/daemon"
	"github.com/hubrelay/hubrelay/sinks"
)

// newBuild describes this program.
func newBuild() cli.Build {
	builtins := slices.Sorted(maps.Keys(builtinPlugins()))
	return cli.Build{
		Version: buildVersion(), ModuleVersion: moduleVersion(),
		Kinds: daemon.Kinds{Sinks: sinks.Kinds(os.Stdout, builtins...), Driver: host.DriverKind(builtins...)},
	}
}
