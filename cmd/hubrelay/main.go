package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/client"
)

func main() {
	// The first signal asks for an orderly stop, a second one ends the process at once.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	std := streams{in: os.Stdin, out: os.Stdout, err: os.Stderr, env: os.Environ()}
	os.Exit(run(ctx, os.Args[1:], std))
}

// streams is what a command sees of the outside world.
type streams struct {
	in       io.Reader
	out, err io.Writer
	env      []string
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

// errorHint is what a client command says behind an error that another setting of its own mends, or nothing.
func errorHint(err error) string {
	var answer *client.Error
	switch {
	case isConnectionError(err):
		return "; is a relay running there? HUBRELAY_URL or --url names another"
	case !errors.As(err, &answer):
		return ""
	case answer.Code == relay.CodeMissingArgument && strings.Contains(answer.Detail, "X-Hub-Id"):
		return "; HUBRELAY_HUB or --hub gives it"
	case answer.Code == relay.CodeAuthInvalid:
		return "; HUBRELAY_KEY or --key gives another"
	case answer.Code == relay.CodeNoURI:
		return "; HUBRELAY_URL or --url names the relay's public address, which is server.listen and not admin.listen"
	default:
		return ""
	}
}

// isConnectionError says whether a request of a client command found nobody.
func isConnectionError(err error) bool {
	var request *url.Error
	var network *net.OpError
	return errors.As(err, &request) && errors.As(err, &network) && network.Op == "dial"
}

// errReported ends a command that has already said on standard error what is wrong.
var errReported = errors.New("reported")

// usageError is a call that could not be understood.
type usageError struct {
	err     error
	command string
}

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

func newUsageError(cmd *cobra.Command, err error) error {
	command := ""
	if cmd.HasParent() {
		command = cmd.CommandPath()[len(cmd.Root().Name())+1:] + " "
	}
	return &usageError{err: err, command: command}
}

func newRoot(std streams) *cobra.Command {
	root := &cobra.Command{
		Use:   "hubrelay",
		Short: "Relays the events of an infrastructure platform to websocket clients, webhooks and more",
		Long: `hubrelay takes in the events of an infrastructure platform and relays them: to websocket clients, and to
sinks such as signed webhooks that are retried until they arrive. Redis Streams is the backbone.

Try it:    hubrelay demo
Configure: hubrelay init
Run it:    hubrelay serve -c hubrelay.yaml`,
		Version:       buildVersion(),
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
	root.AddCommand(
		newInit(std), newServe(std), newDemo(std),
		newPublish(std), newListen(std),
		newMigrate(std), newJobs(std),
		newSinksCommand(std), newSourcesCommand(std), newConnections(std), newDeadletters(std), newInventory(std),
		newConfig(std), newKeys(std), newTopics(std), newPlugins(std), newVersion(std), newBuiltinPlugin(), newAgent(),
	)
	return root
}

// withUsageErrors gives cobra's argument checks our exit code.
func withUsageErrors(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if err := check(cmd, args); err != nil {
			return newUsageError(cmd, fmt.Errorf("%w: write %s", err, cmd.UseLine()))
		}
		return nil
	}
}

// exactNamedArgs takes n arguments, none of them empty: they name things, such as `jobs show "$(…)"` where that prints nothing.
func exactNamedArgs(n int) cobra.PositionalArgs {
	return withUsageErrors(func(cmd *cobra.Command, args []string) error {
		if slices.Contains(args, "") {
			return errors.New("an argument is empty")
		}
		return cobra.ExactArgs(n)(cmd, args)
	})
}

// commandGroup is a command that only holds others: without one of them it prints its help.
func commandGroup(use, short string, children ...*cobra.Command) *cobra.Command {
	cmd := &cobra.Command{
		Use: use, Short: short, Args: unknownCommand,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(children...)
	return cmd
}

// unknownCommand refuses words behind a command that only holds others, naming what was probably meant.
func unknownCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	hint := ""
	cmd.SuggestionsMinimumDistance = 2
	if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
		hint = fmt.Sprintf(", the nearest is %q", near[0])
	}
	return newUsageError(cmd, fmt.Errorf("unknown command %q%s", args[0], hint))
}
