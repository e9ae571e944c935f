package cli

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strings"

	"github.com/spf13/cobra"

	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/term"
	"github.com/hubrelay/hubrelay/relay"
)

// changeBatch is the number of dead letters per request. Several small requests allow progress output and interrupts.
const changeBatch = 500

// deadLetterAction describes a command that changes dead letters.
type deadLetterAction struct {
	verb, pastTense, short, long string
	confirm                      bool // ask before --all
}

type changeFlags struct {
	adminFlags
	filter   deadLetterFilter
	all, yes bool
}

func newLettersChange(std term.Streams, c deadLetterAction) *cobra.Command {
	var f changeFlags
	cmd := &cobra.Command{
		Use:   c.verb + " SINK [ID... | --all]",
		Short: c.short,
		Long:  c.long + "\n\nSpecify ids or --all. The flags --topic, --hub and --since limit --all.",
		Example: fmt.Sprintf(`  hubrelay deadletters %[1]s billing 019aa0c2f4e17b3c00000001
  hubrelay deadletters %[1]s billing --all --topic 'container.*' --since 24h`, c.verb),
		Args: WithUsageErrors(cobra.MinimumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case f.all && len(args) > 1:
				return NewUsageError(cmd, errors.New("specify either ids or --all, not both"))
			case !f.all && len(args) == 1:
				return NewUsageError(cmd, errors.New("nothing selected: specify ids or --all"))
			case !f.all && f.filter.isSet():
				return NewUsageError(cmd, errors.New("--topic, --hub and --since require --all"))
			case f.all && c.confirm && !f.yes && !canConfirm(std):
				return NewUsageError(cmd, fmt.Errorf("confirmation requires a terminal: use --yes to %s all", c.verb))
			}
			query, err := f.filter.queryParams(cmd)
			if err != nil {
				return err
			}
			client, err := f.newClient(std)
			if err != nil {
				return err
			}
			return changeLetters(cmd.Context(), std, client, &f, c, args, query)
		},
	}
	f.filter.register(cmd)
	f.register(cmd, std)
	cmd.Flags().BoolVar(&f.all, "all", false, "all dead letters of the sink that match the filters")
	if c.confirm {
		cmd.Flags().BoolVarP(&f.yes, "yes", "y", false, "do not ask for confirmation")
	}
	return cmd
}

// changeLetters lists the selected ids first. It therefore changes exactly the dead letters that the user confirmed,
// and no delivery that fails again during that time.
func changeLetters(ctx context.Context, std term.Streams, client *adminClient, f *changeFlags, c deadLetterAction,
	args []string, query url.Values,
) error {
	sink, ids := args[0], args[1:]
	if f.all {
		var err error
		if ids, err = letterIDs(ctx, std, client, sink, query); err != nil {
			return err
		}
		if c.confirm && !f.yes && len(ids) > 0 {
			if err := confirmChange(ctx, std, fmt.Sprintf("%s %s of %s permanently?", c.verb,
				term.Pluralize(len(ids), "dead letter"), sink)); err != nil {
				return err
			}
		}
	}
	done, err := changeInBatches(ctx, std, client, sinkPath(sink, "deadletters", c.verb), c.pastTense, ids)
	if err != nil {
		if done > 0 {
			err = fmt.Errorf("%w; %d of %d were %s before that; run the command again for the rest", err, done,
				len(ids),
				c.pastTense)
		}
		return err
	}
	if f.asJSON {
		err = json.NewEncoder(std.Out).Encode(map[string]any{
			"sink": sink, c.pastTense: done,
			"missing": len(ids) - done,
		})
	} else {
		_, err = fmt.Fprintln(std.Out,
			term.Sanitize(fmt.Sprintf("%s %s of %s", c.pastTense, term.Pluralize(done, "dead letter"), sink)))
	}
	if missing := len(ids) - done; err == nil && missing > 0 && !f.all {
		return fmt.Errorf("%d of %d ids are not dead letters of %s or cannot be %s: 'hubrelay deadletters list' "+
			"shows all dead letters", missing, len(ids), term.Sanitize(sink), c.pastTense)
	}
	return err
}

func letterIDs(ctx context.Context, std term.Streams, client *adminClient, sink string, query url.Values) ([]string,
	error,
) {
	var ids []string
	var info struct{ Data sinkInfo }
	if err := client.get(ctx, sinkPath(sink), nil, &info); err != nil {
		return nil, err
	}
	p := term.NewProgress(std.Err, "listed", int(info.Data.Dead))
	defer p.Clear()
	err := forEachPage(ctx, client, sinkPath(sink, "deadletters"), query, func(page []json.RawMessage) error {
		for _, raw := range page {
			var l deadLetterInfo
			if err := decodeData(raw, &l); err != nil {
				return err
			}
			ids = append(ids, l.ID)
		}
		p.Update(len(ids))
		return nil
	})
	return ids, err
}

// changeInBatches posts the ids in several requests and returns the number of changed dead letters.
func changeInBatches(ctx context.Context, std term.Streams, client *adminClient, path, verb string, ids []string) (
	done int,
	err error,
) {
	p := term.NewProgress(std.Err, verb, len(ids))
	defer p.Clear()
	for sent := 0; sent < len(ids); {
		if ctx.Err() != nil {
			return done, errors.New("interrupted")
		}
		part := ids[sent:min(sent+changeBatch, len(ids))]
		var answer struct{ Data map[string]any }
		if err := client.post(ctx, path, map[string]any{"ids": part}, &answer); err != nil {
			var refused *apiError
			if errors.As(err, &refused) {
				done += refused.Extra.Replayed
			}
			return done, err
		}
		changed, ok := answer.Data[verb].(float64)
		if !ok {
			return done, errors.New("the response has no number of changes: does the daemon have another version?")
		}
		done += int(changed)
		sent += len(part)
		p.Update(sent)
	}
	return done, nil
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
	answer, interrupted := relay.Await(ctx, answers)
	switch {
	case interrupted != nil:
		_, _ = fmt.Fprintln(std.Err)
		return errors.New("interrupted: nothing was changed")
	case answer == "y" || answer == "yes":
		return nil
	}
	return errors.New("nothing was changed: answer y to confirm")
}
