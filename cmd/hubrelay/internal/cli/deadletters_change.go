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

	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/term"
	"github.com/spf13/cobra"
)

// changeBatch is how many dead letters are changed in one request, so that progress shows and an interrupt works.
const changeBatch = 500

// deadLetterAction is what is done to many dead letters.
type deadLetterAction struct {
	verb, pastTense, short, long string
	confirm                      bool // --all asks first
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
		Long: c.long + "\n\nName them by their ids, or take all with --all, which --topic, --hub and --since " +
			"narrow down.",
		Example: fmt.Sprintf(`  hubrelay deadletters %[1]s billing 019aa0c2f4e17b3c00000001
  hubrelay deadletters %[1]s billing --all --topic 'container.*' --since 24h`, c.verb),
		Args: WithUsageErrors(cobra.MinimumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case f.all && len(args) > 1:
				return NewUsageError(cmd, errors.New("give either ids or --all, not both"))
			case !f.all && len(args) == 1:
				return NewUsageError(cmd, errors.New("nothing chosen: give ids, or --all"))
			case !f.all && f.filter.isSet():
				return NewUsageError(cmd, errors.New("--topic, --hub and --since choose among all: give --all too"))
			case f.all && c.confirm && !f.yes && (!isTerminalInput(std.In) || !term.IsTerminal(std.Err)):
				return NewUsageError(cmd, fmt.Errorf("to %s all without being asked, give --yes", c.verb))
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
	cmd.Flags().BoolVar(&f.all, "all", false, "all dead letters of the sink, or those that the filters choose")
	if c.confirm {
		cmd.Flags().BoolVarP(&f.yes, "yes", "y", false, "do not ask")
	}
	return cmd
}

// changeLetters first lists what is chosen, so that exactly that is changed which the user was asked about, and what
// dies again meanwhile is left alone.
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
			if err := confirm(ctx, std, fmt.Sprintf("%s %s of %s for good?", c.verb,
				term.Pluralize(len(ids), "dead letter"), sink)); err != nil {
				return err
			}
		}
	}
	done, err := inBatches(ctx, std, client, sinkPath(sink, "deadletters", c.verb), c.pastTense, ids)
	if err != nil {
		if done > 0 {
			err = fmt.Errorf("%w; %d of %d were %s before, the same command does the rest", err, done, len(ids),
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
		return fmt.Errorf("%d of %d are no dead letters of %s, or none that can be %s: 'hubrelay deadletters list' "+
			"shows those there are",
			missing, len(ids), term.Sanitize(sink), c.pastTense)
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
	p := term.NewProgress(std.Err, "looked up", int(info.Data.Dead))
	defer p.Clear()
	err := forEachPage(ctx, client, sinkPath(sink, "deadletters"), query, func(page []json.RawMessage) error {
		for _, raw := range page {
			var l deadLetterInfo
			if err := readAnswer(raw, &l); err != nil {
				return err
			}
			ids = append(ids, l.ID)
		}
		p.Update(len(ids))
		return nil
	})
	return ids, err
}

// inBatches posts the ids a part at a time and returns how many of them were changed.
func inBatches(ctx context.Context, std term.Streams, client *adminClient, path, verb string, ids []string) (done int,
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
			return done, errors.New("the daemon does not say how many it changed: is it another version?")
		}
		done += int(changed)
		sent += len(part)
		p.Update(sent)
	}
	return done, nil
}

func isTerminalInput(in io.Reader) bool {
	w, ok := in.(io.Writer) // standard input is a file, and so may be written to
	return ok && term.IsTerminal(w)
}

// confirm asks on the terminal; anything but yes ends the command.
func confirm(ctx context.Context, std term.Streams, question string) error {
	_, _ = fmt.Fprintf(std.Err, "%s [y/N] ", term.Sanitize(strings.ToUpper(question[:1])+question[1:]))
	// The reader cannot be interrupted: a signal leaves it behind, and the process ends.
	answers := make(chan string, 1)
	go func() {
		line, _ := bufio.NewReader(std.In).ReadString('\n')
		answers <- strings.ToLower(strings.TrimSpace(line))
	}()
	select {
	case <-ctx.Done():
		_, _ = fmt.Fprintln(std.Err)
		return errors.New("interrupted: nothing was changed")
	case answer := <-answers:
		if answer == "y" || answer == "yes" {
			return nil
		}
		return errors.New("nothing was changed: answer y to go on")
	}
}
