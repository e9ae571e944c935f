package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/cli"
	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/term"
	"github.com/spf13/cobra"
)

func main() {
	// The first signal asks for an orderly stop, a second one ends the process at once.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	std := term.Streams{In: os.Stdin, Out: os.Stdout, Err: os.Stderr, Env: os.Environ()}
	os.Exit(run(ctx, os.Args[1:], std))
}

// Exit codes are part of the interface: scripts tell a wrong call (2) from a failure (1).
const (
	exitOK      = 0
	exitFailure = 1
	exitUsage   = 2
)

// run executes one command line and returns the exit code. Errors go to standard error, one line each.
func run(ctx context.Context, args []string, std term.Streams) int {
	root := newRoot(std)
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	var usage *cli.UsageError
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &usage):
		_, _ = fmt.Fprintf(std.Err, "hubrelay: %v; 'hubrelay %s--help' explains\n", usage.Err, usage.Command)
		return exitUsage
	case errors.Is(err, cli.ErrReported):
		return exitFailure
	default:
		_, _ = fmt.Fprintf(std.Err, "hubrelay: %s%s\n", term.Sanitize(err.Error()), cli.ErrorHint(err))
		return exitFailure
	}
}

func newRoot(std term.Streams) *cobra.Command {
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
		Args:          cli.RejectUnknownCommand,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetIn(std.In)
	root.SetOut(std.Out)
	root.SetErr(std.Err)
	root.SetFlagErrorFunc(cli.NewUsageError)
	root.CompletionOptions.HiddenDefaultCmd = true
	root.AddCommand(cli.Commands(std, build)...)
	root.AddCommand(newBuiltinPlugin(), newAgent())
	return root
}
