package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

func main() {
	// The first signal asks for an orderly stop, a second one ends the process at once.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	std := streams{in: os.Stdin, out: os.Stdout, err: os.Stderr, env: os.Environ()}
	os.Exit(run(ctx, os.Args[1:], std))
}

// Exit codes are part of the interface: scripts tell a wrong call (2) from a failure (1).
const (
	exitOK      = 0
	exitFailure = 1
	exitUsage   = 2
)

// run executes one command line and returns the exit code. Errors go to standard error, one line each.
func run(ctx context.Context, args []string, std streams) int {
	root := newRoot(std)
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	var usage *usageError
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &usage):
		_, _ = fmt.Fprintf(std.err, "hubrelay: %v; 'hubrelay %s--help' explains\n", usage.err, usage.command)
		return exitUsage
	case errors.Is(err, errReported):
		return exitFailure
	default:
		_, _ = fmt.Fprintf(std.err, "hubrelay: %s%s\n", sanitizeForTerminal(err.Error()), errorHint(err))
		return exitFailure
	}
}

func newRoot(std streams) *cobra.Command {
	build := newBuild()
	root := &cobra.Command{
		Use:   "hubrelay",
		Short: "Relays the events of an infrastructure platform to websocket clients, webhooks and more",
		Long: `hubrelay takes in the events of an infrastructure platform and relays them: to websocket clients, and to
sinks such as signed webhooks that are retried until they arrive. Redis Streams is the backbone.

Try it:    hubrelay demo
Configure: hubrelay init
Run it:    hubrelay serve -c hubrelay.yaml`,
		Version:       build.Version,
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          unknownCommand,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetIn(std.in)
	root.SetOut(std.out)
	root.SetErr(std.err)
	root.SetFlagErrorFunc(newUsageError)
	root.CompletionOptions.HiddenDefaultCmd = true
	root.AddCommand(Commands(std, build)...)
	root.AddCommand(newBuiltinPlugin(), newAgent())
	return root
}
