package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/command"
	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/term"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/daemon"
)

type explainFlags struct {
	file, event, hub string
	command.Output
}

func newSinksExplain(std term.Streams, build Build) *cobra.Command {
	var f explainFlags
	cmd := &cobra.Command{
		Use:   "explain -c FILE --event FILE",
		Short: "Show the sinks that would receive an event, and their requests",
		Long: `Validates an event as the relay would, and shows for each sink of the configuration whether it receives
the event, which rule applies, when it delivers the event, and the request to its destination. It sends nothing and needs
no running relay. If a sink uses digests or batches, it shows one that contains only this event.

The ID is an example; signatures are valid. Parts of addresses and headers that can be credentials are hidden. A plugin
is started to get its request, and stopped. If it provides none, the output shows its input.`,
		Example: `  hubrelay sinks explain -c hubrelay.yaml --event event.json
  echo '{"topic":"container.error"}' | hubrelay sinks explain -c hubrelay.yaml --event - --hub hub-1`,
		Args: command.ExactNamedArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if f.event == "" {
				return command.NewUsageError(cmd, errors.New("an event is required: use --event FILE, or --event - for "+
					"standard input"))
			}
			return explainSinks(cmd.Context(), std, build, &f)
		},
	}
	configFlag(cmd, &f.file)
	cmd.Flags().StringVar(&f.event, "event", "", "file with one event as JSON, - for standard input")
	cmd.Flags().StringVar(&f.hub, "hub", "", "hub ID, for an event without one")
	f.Register(cmd.Flags())
	return cmd
}

func explainSinks(ctx context.Context, std term.Streams, build Build, f *explainFlags) error {
	cfg, err := loadConfig(std, build, f.file)
	if err != nil {
		return err
	}
	n, err := readEvent(std, cfg, f)
	if err != nil {
		return err
	}
	paint := term.NewPalette(std.Out, std.Env)
	if f.IsTable() {
		account := n.Account
		command.SetFirstNonEmpty(&account, "none")
		_, err := fmt.Fprintf(std.Out, "%s  hub %s  account %s\n", paint.Topic(term.Sanitize(n.Topic)),
			term.Sanitize(n.Hub), term.Sanitize(account))
		if err != nil {
			return err
		}
	}
	list := f.NewList(std.Out)
	for _, name := range slices.Sorted(maps.Keys(cfg.Sinks)) {
		e, err := daemon.Explain(ctx, cfg, build.Kinds.Sinks, build.Version, name, n)
		switch {
		case err != nil:
			return fmt.Errorf("sink %s: %w", name, err)
		case !f.IsTable():
			err = list.Write(e)
		default:
			err = printExplained(std.Out, paint, e)
		}
		if err != nil {
			return err
		}
	}
	return list.Close()
}

// readEvent reads the event from a file or from standard input.
func readEvent(std term.Streams, cfg *daemon.Config, f *explainFlags) (relay.Notification, error) {
	if f.event == "-" {
		return daemon.ReadEvent(cfg, std.In, f.hub)
	}
	file, err := os.Open(f.event)
	if err != nil {
		return relay.Notification{}, fmt.Errorf("--event: %w", err)
	}
	defer func() { _ = file.Close() }()
	return daemon.ReadEvent(cfg, file, f.hub)
}

func printExplained(w io.Writer, p term.Palette, e daemon.Explained) error {
	var b strings.Builder
	verdict := p.Dim("does not match")
	if e.Matched {
		verdict = p.Green("matches")
	}
	fmt.Fprintf(&b, "\n%s (%s) %s: %s\n", p.Bold(e.Sink), e.Type, verdict, term.Sanitize(e.Reason))
	for _, text := range e.Timing {
		fmt.Fprintf(&b, "  %s\n", term.Sanitize(text))
	}
	switch r := e.Request; {
	case e.Error != "":
		fmt.Fprintf(&b, "  %s: %s\n", p.Red("cannot be shown"), term.Sanitize(e.Error))
	case r != nil:
		if r.Note != "" {
			fmt.Fprintf(&b, "  %s\n", p.Yellow(term.Sanitize(r.Note)))
		}
		writeRequest(&b, p, &r.Preview)
		for i := range r.Followups {
			b.WriteByte('\n')
			writeRequest(&b, p, &r.Followups[i])
		}
	case e.Matched:
		fmt.Fprintf(&b, "  sinks of this type cannot show their requests\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func writeRequest(b *strings.Builder, p term.Palette, r *relay.Preview) {
	fmt.Fprintf(b, "  %s %s\n", term.Sanitize(r.Method), term.Sanitize(r.Target))
	for _, h := range r.Headers {
		fmt.Fprintf(b, "  %s: %s\n", p.Cyan(term.Sanitize(h.Name)), term.Sanitize(h.Value))
	}
	b.WriteByte('\n')
	for line := range strings.Lines(string(r.Payload)) {
		fmt.Fprintf(b, "  %s\n", term.Sanitize(strings.TrimRight(line, "\r\n")))
	}
}
