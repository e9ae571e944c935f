package admincli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"

	"github.com/spf13/cobra"

	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/command"
	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/term"
	"github.com/hubrelay/hubrelay/internal/adminapi"
	"github.com/hubrelay/hubrelay/internal/await"
)

// changeBatch is the number of changed entries per request. Several small requests allow progress output and interrupts.
const changeBatch = 500

// deadLetterAction describes a command that changes dead letters.
type deadLetterAction struct {
	operation                    adminapi.Operation[adminapi.ChangeDeadLettersRequest, adminapi.ChangeDeadLettersResult]
	verb, pastTense, short, long string
	confirm                      bool // ask before --all
}

type changeFlags struct {
	adminFlags
	selection deadLetterFlags
	all, yes  bool
}

func newLettersChange(std term.Streams, c deadLetterAction) *cobra.Command {
	var f changeFlags
	cmd := &cobra.Command{
		Use:   c.verb + " SINK [ID... | --all]",
		Short: c.short,
		Long:  c.long + "\n\nSpecify IDs or --all. The flags --topic, --hub and --since limit --all.",
		Example: fmt.Sprintf(`  hubrelay deadletters %[1]s billing 019aa0c2f4e17b3c00000001
  hubrelay deadletters %[1]s billing --all --topic 'container.*' --since 24h`, c.verb),
		Args: command.NamedArgs(1, math.MaxInt),
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case f.all && len(args) > 1:
				return command.NewUsageError(cmd, errors.New("specify either IDs or --all, not both"))
			case !f.all && f.selection.isSet():
				return command.NewUsageError(cmd, errors.New("--topic, --hub and --since require --all"))
			case !f.all && len(args) == 1:
				return command.NewUsageError(cmd, errors.New("nothing selected: specify IDs or --all"))
			case f.all && c.confirm && !f.yes && !canConfirm(std):
				return command.NewUsageError(cmd, fmt.Errorf("confirmation requires a terminal: use --yes to %s all", c.verb))
			}
			filter, err := f.selection.toFilter(cmd)
			if err != nil {
				return err
			}
			return changeLetters(cmd.Context(), std, &f, c, args, filter)
		},
	}
	f.selection.register(cmd)
	f.register(cmd, std)
	cmd.Flags().BoolVar(&f.all, "all", false, "all dead letters of the sink that match the filters")
	if c.confirm {
		cmd.Flags().BoolVarP(&f.yes, "yes", "y", false, "do not ask for confirmation")
	}
	return cmd
}

// changeLetters lists the selected ids first. It therefore changes exactly the dead letters that the user confirmed,
// and no delivery that fails again during that time.
func changeLetters(
	ctx context.Context, std term.Streams, f *changeFlags, c deadLetterAction, args []string,
	filter adminapi.DeadLetterFilter,
) error {
	conn, err := f.connect(std)
	if err != nil {
		return err
	}
	sink, ids := args[0], args[1:]
	if f.all {
		if ids, err = letterIDs(ctx, std, conn, sink, filter); err != nil {
			return err
		}
		if c.confirm && !f.yes && len(ids) > 0 {
			if err := confirmChange(ctx, std, fmt.Sprintf("%s %s of %s permanently?", c.verb,
				term.Pluralize(len(ids), "dead letter"), sink)); err != nil {
				return err
			}
		}
	}
	total, err := changeInBatches(ctx, std, conn, c, sink, ids)
	err = printChange(std, &f.Output, &total, len(ids), c.pastTense, err, func() error {
		_, err := fmt.Fprintln(std.Out,
			term.Sanitize(fmt.Sprintf("%s %s of %s", c.pastTense, term.Pluralize(total.Changed, "dead letter"), sink)))
		return err
	})
	if err != nil {
		return err
	}
	return explainUnchangedLetters(sink, total.Unchanged, len(ids), f.all)
}

// explainUnchangedLetters returns an error if some of n dead letters were not changed. With --all, another command may have
// changed them.
func explainUnchangedLetters(sink string, unchanged []adminapi.Unchanged, n int, all bool) error {
	missing, unreadable := 0, 0
	for _, u := range unchanged {
		if u.Reason == adminapi.UnchangedUnreadable {
			unreadable++
		} else {
			missing++
		}
	}
	var reasons []string
	if missing > 0 && !all {
		reasons = append(reasons, fmt.Sprintf("not dead letters of %[1]s: %[2]d of %[3]d IDs; 'hubrelay deadletters list %[1]s' "+
			"shows all", sink, missing, n))
	}
	if unreadable > 0 {
		reasons = append(reasons, fmt.Sprintf("%d of %d dead letters of %[3]s cannot be decoded, so they stay; "+
			"'hubrelay deadletters drop %[3]s ID' removes one", unreadable, n, sink))
	}
	if reasons == nil {
		return nil
	}
	return errors.New(term.Sanitize(strings.Join(reasons, "; ")))
}

func letterIDs(
	ctx context.Context, std term.Streams, c *adminConn, sink string, filter adminapi.DeadLetterFilter,
) (ids []string, err error) {
	info, err := callRelay(ctx, c, adminapi.ShowSink(), adminapi.Empty{}, sink)
	if err != nil {
		return nil, err
	}
	p := term.NewProgress(std.Err, "listed", int(info.Dead))
	defer p.Clear()
	err = forEachDeadLetter(ctx, c, sink, filter, func(page []adminapi.DeadLetter) error {
		for _, l := range page {
			ids = append(ids, l.ID)
		}
		p.Update(len(ids))
		return nil
	})
	return ids, err
}

// changeInBatches posts the ids in several requests. With an error it returns what was changed before.
func changeInBatches(
	ctx context.Context, std term.Streams, conn *adminConn, c deadLetterAction, sink string, ids []string,
) (adminapi.ChangeResult, error) {
	total := adminapi.NewChangeResult(0)
	p := term.NewProgress(std.Err, c.pastTense, len(ids))
	defer p.Clear()
	for sent := 0; sent < len(ids); {
		if ctx.Err() != nil {
			return total, errors.New("interrupted")
		}
		part := ids[sent:min(sent+changeBatch, len(ids))]
		result, err := callRelay(ctx, conn, c.operation, adminapi.ChangeDeadLettersRequest{IDs: part}, sink)
		if err != nil {
			total.Changed += changedBefore(err)
			return total, err
		}
		total.Add(result.ChangeResult)
		sent += len(part)
		p.Update(sent)
	}
	return total, nil
}

// canConfirm reports whether [confirmChange] can ask a person.
func canConfirm(std term.Streams) bool {
	in, ok := std.In.(io.Writer) // os.Stdin is a file, so it implements io.Writer
	return ok && term.IsTerminal(in) && term.IsTerminal(std.Err)
}

// confirmChange asks on the terminal. Any answer but yes is an error.
func confirmChange(ctx context.Context, std term.Streams, question string) error {
	_, _ = fmt.Fprintf(std.Err, "%s [y/N] ", term.Sanitize(strings.ToUpper(question[:1])+question[1:]))
	// A read cannot be interrupted. The goroutine ends with the process.
	answers := make(chan string, 1)
	go func() {
		line, _ := bufio.NewReader(std.In).ReadString('\n')
		answers <- strings.ToLower(strings.TrimSpace(line))
	}()
	answer, interrupted := await.Value(ctx, answers)
	switch {
	case interrupted != nil:
		_, _ = fmt.Fprintln(std.Err)
		return errors.New("interrupted: nothing was changed")
	case answer == "y" || answer == "yes":
		return nil
	}
	return errors.New("nothing was changed: answer y to confirm")
}
