// Package command contains what the commands of hubrelay share: groups, arguments, flags and errors.
package command

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/term"
	"github.com/hubrelay/hubrelay/internal/suggest"
	"github.com/hubrelay/hubrelay/internal/yamldoc"
)

// NewGroup returns a command that only contains other commands. Without one of them it prints its help.
func NewGroup(use, short string, children ...*cobra.Command) *cobra.Command {
	cmd := &cobra.Command{
		Use: use, Short: short, Args: RejectUnknown,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(children...)
	return cmd
}

// RejectUnknown rejects arguments of a command that only contains other commands, and suggests the closest command.
func RejectUnknown(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	hint := ""
	var names []string
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() {
			names = append(names, c.Name())
		}
	}
	if near := suggest.ClosestName(args[0], names); near != "" {
		hint = fmt.Sprintf(" (did you mean %q?)", near)
	}
	return NewUsageError(cmd, fmt.Errorf("unknown command %q%s", args[0], hint))
}

// WithUsageErrors returns check with its errors as usage errors.
func WithUsageErrors(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if err := check(cmd, args); err != nil {
			return NewUsageError(cmd, fmt.Errorf("%w: usage: %s", err, cmd.UseLine()))
		}
		return nil
	}
}

// ExactNamedArgs accepts n arguments, like [NamedArgs].
func ExactNamedArgs(n int) cobra.PositionalArgs { return NamedArgs(n, n) }

// NamedArgs accepts a number of arguments. Their names follow the name of the command in Use. Up to the maximum, or to the
// minimum if there is no maximum (math.MaxInt), they must not be empty: a shell passes an empty argument, for example for
// `jobs show "$(…)"` if the inner command prints nothing.
func NamedArgs(minimum, maximum int) cobra.PositionalArgs {
	return WithUsageErrors(func(cmd *cobra.Command, args []string) error {
		named := maximum
		if maximum == math.MaxInt {
			named = minimum
		}
		switch {
		case slices.Contains(args[:min(named, len(args))], ""):
			return errors.New("an argument is empty")
		case len(args) < minimum:
			names := slices.DeleteFunc(strings.Fields(cmd.Use)[1:], func(name string) bool { return name == "[flags]" })
			return fmt.Errorf("%s is missing", strings.Trim(names[len(args)], "[]"))
		case len(args) > maximum:
			return fmt.Errorf("the argument %q is unexpected", args[maximum])
		}
		return nil
	})
}

// UsageError is an error in the command line.
type UsageError struct {
	Err     error
	Command string
}

func (e *UsageError) Error() string { return e.Err.Error() }
func (e *UsageError) Unwrap() error { return e.Err }

// NewUsageError returns err as a [UsageError] of cmd.
func NewUsageError(cmd *cobra.Command, err error) error {
	name := ""
	if cmd.HasParent() {
		name = cmd.CommandPath()[len(cmd.Root().Name())+1:] + " "
	}
	return &UsageError{Err: err, Command: name}
}

// NewFlagError returns the error of a flag as a [UsageError]. If the flag follows an unknown command, the error names that
// command instead.
func NewFlagError(cmd *cobra.Command, err error) error {
	if args := cmd.Flags().Args(); cmd.HasAvailableSubCommands() && len(args) > 0 {
		return RejectUnknown(cmd, args)
	}
	var unknown *pflag.NotExistError
	var invalid *pflag.InvalidValueError
	switch {
	case errors.As(err, &unknown):
		var names []string
		cmd.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
		if near := suggest.ClosestName(unknown.GetSpecifiedName(), names); near != "" {
			err = fmt.Errorf("%w (did you mean --%s?)", err, near)
		}
	case errors.As(err, &invalid):
		if values := flagValues[invalid.GetFlag().Value.Type()]; values != "" {
			err = fmt.Errorf("--%s %q is not %s", invalid.GetFlag().Name, invalid.GetValue(), values)
		}
	}
	return NewUsageError(cmd, err)
}

// flagValues describes the values of a flag by its type in pflag.
var flagValues = map[string]string{
	"bool": "true or false", "duration": "a duration such as 90s", "int": "a whole number", "uint16": "a number from 0 to 65535",
}

// ErrReported is returned by commands that have already printed their errors to standard error.
var ErrReported = errors.New("reported")

// PrintProblems prints the problems of a file, one per line, and returns ErrReported. It returns any other error
// unchanged.
func PrintProblems(std term.Streams, err error) error {
	var problems yamldoc.Problems
	if !errors.As(err, &problems) {
		return err
	}
	for _, p := range problems {
		_, _ = fmt.Fprintln(std.Err, "error: "+term.Sanitize(p.String()))
	}
	return ErrReported
}
