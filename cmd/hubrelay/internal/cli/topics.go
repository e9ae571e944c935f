package cli

import (
	"errors"
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/command"
	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/term"
	"github.com/hubrelay/hubrelay/relay"
)

func newTopics(std term.Streams) *cobra.Command {
	var output command.Output
	cmd := &cobra.Command{
		Use:   "topics [PATTERN...]",
		Short: "List topics and their meaning",
		Long: `Lists all topics with their meaning, or only topics that match a pattern.

In a pattern, "*" is any run of characters, including dots. A leading "!" excludes topics. Only sinks receive the
topics of the relay, and only with patterns that start with "hubrelay.".`,
		Example: `  hubrelay topics
  hubrelay topics 'container.instance.*' '!*.error'
  hubrelay topics 'hubrelay.*'`,
		RunE: func(_ *cobra.Command, args []string) error { return listTopics(std, &output, args) },
	}
	output.Register(cmd.Flags())
	return cmd
}

func listTopics(std term.Streams, o *command.Output, args []string) error {
	patterns, err := relay.ParsePatterns(args)
	if err != nil {
		return err
	}
	catalog, err := relay.NewCatalog(nil)
	if err != nil {
		return err
	}
	if err := catalog.CheckPatterns(args); err != nil {
		return err
	}
	paint := term.NewPalette(std.Out, std.Env)
	list := o.NewList(std.Out)
	table := tabwriter.NewWriter(std.Out, 0, 0, 2, ' ', 0)
	for _, t := range append(relay.Topics(), relay.OperationalTopics()...) {
		switch {
		case !patterns.Match(t.Name):
		case !o.IsTable():
			err = list.Write(map[string]string{"topic": t.Name, "meaning": t.Meaning})
		default:
			_, err = fmt.Fprintf(table, "%s\t%s\n", paint.Topic(t.Name), t.Meaning)
		}
		if err != nil {
			return err
		}
	}
	return errors.Join(list.Close(), table.Flush())
}
