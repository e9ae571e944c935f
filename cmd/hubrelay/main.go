// Command hubrelay relays the events of an infrastructure platform. Producers publish them over HTTP or through
// Redis; websocket clients and sinks receive them.
//
// This package has the root command, the exit codes and the list of builtin plugins. The commands are in
// internal/cli. The daemon is in relay/daemon.
package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/cli"
	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/command"
	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/term"
	"github.com/hubrelay/hubrelay/plugins/host"
	"github.com/hubrelay/hubrelay/relay/daemon"
	"github.com/hubrelay/hubrelay/sinks"
)

func main() {
	// The first signal cancels ctx, the second one ends the process.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	std := term.Streams{In: os.Stdin, Out: term.NewOutput(os.Stdout), Err: term.NewErrorOutput(os.Stderr), Env: os.Environ()}
	os.Exit(run(ctx, os.Args[1:], std))
}

// Exit codes are a contract: scripts distinguish errors from wrong usage.
const (
	exitOK      = 0
	exitFailure = 1
	exitUsage   = 2
)

// run executes a command line and returns the exit code. It prints an error as one line to standard error.
func run(ctx context.Context, args []string, std term.Streams) int {
	root := newRoot(std)
	root.SetArgs(args)
	err := checkCommandPath(root, args)
	if err == nil {
		err = root.ExecuteContext(ctx)
	}
	var usage *command.UsageError
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &usage):
		_, _ = fmt.Fprintf(std.Err, "hubrelay: %v; see 'hubrelay %s--help'\n", usage.Err, usage.Command)
		return exitUsage
	case errors.Is(err, command.ErrReported):
		return exitFailure
	default:
		_, _ = fmt.Fprintf(std.Err, "hubrelay: %s%s\n", term.Sanitize(err.Error()), cli.ErrorHint(err))
		return exitFailure
	}
}

// checkCommandPath rejects an unknown command whose help is requested. Cobra prints the help of its parent and
// reports success.
func checkCommandPath(root *cobra.Command, args []string) error {
	switch {
	case len(args) > 0 && args[0] == "help":
		args = args[1:]
	case !slices.Contains(args, "--help") && !slices.Contains(args, "-h"):
		return nil
	}
	root.InitDefaultCompletionCmd() // otherwise cobra adds it during Execute
	cmd, rest, err := root.Find(args)
	if err != nil || !cmd.HasAvailableSubCommands() {
		return nil
	}
	for _, arg := range rest {
		if !strings.HasPrefix(arg, "-") {
			return command.RejectUnknown(cmd, []string{arg})
		}
	}
	return nil
}

func newRoot(std term.Streams) *cobra.Command {
	build := newBuild()
	root := &cobra.Command{
		Use:   "hubrelay",
		Short: "Relay the events of an infrastructure platform to websocket clients, webhooks and more",
		Long: `Relays the events of an infrastructure platform to websocket clients and to sinks, such as signed
webhooks that are retried for days. Redis Streams is the backbone.

Try it:    hubrelay demo
Configure: hubrelay init
Run it:    hubrelay serve -c hubrelay.yaml`,
		Version:       build.Version,
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          command.RejectUnknown,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetIn(std.In)
	root.SetOut(std.Out)
	root.SetErr(std.Err)
	root.SetFlagErrorFunc(command.NewFlagError)
	// The usage of a group is only that of its commands.
	root.SetUsageTemplate(strings.Replace(root.UsageTemplate(),
		"{{if .Runnable}}", "{{if and .Runnable (not .HasAvailableSubCommands)}}", 1))
	root.CompletionOptions.HiddenDefaultCmd = true
	root.AddCommand(cli.Commands(std, build)...)
	root.AddCommand(newBuiltinPlugin(), newAgent())
	return root
}

// newBuild describes this program.
func newBuild() cli.Build {
	builtins := slices.Sorted(maps.Keys(builtinPlugins()))
	return cli.Build{
		Version: buildVersion(), ModuleVersion: moduleVersion(),
		Kinds: daemon.Kinds{Sinks: sinks.Kinds(os.Stdout, builtins...), Driver: host.DriverKind(builtins...)},
	}
}

// version is set by the linker (-X main.version=v1.2.3).
var version string

// buildVersion returns the version of the release, or the version that Go recorded.
func buildVersion() string {
	if version != "" {
		return version
	}
	info, ok := debug.ReadBuildInfo()
	if !ok || info.Main.Version == "" {
		return "devel"
	}
	return info.Main.Version
}

// moduleVersion returns the version of the module that can be downloaded. A build from a checkout that is not a
// release returns "devel".
func moduleVersion() string {
	if info, ok := debug.ReadBuildInfo(); ok && version == "" {
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				return "devel"
			}
		}
	}
	return buildVersion()
}
