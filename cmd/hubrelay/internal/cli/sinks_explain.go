package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/command"

	"github.com/spf13/cobra"

	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/term"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/daemon"
)

type explainFlags struct {
	file, event, hub string
	asJSON           bool
}

func newSinksExplain(std term.Streams, build Build) *cobra.Command {
	var f explainFlags
	cmd := &cobra.Command{
		Use:   "explain -c FILE --event FILE",
		Short: "Show the sinks that would receive an event, and their requests",
		Long: `Validates an event as the relay would, and shows for each sink of the configuration whether it receives
the event, which rule applies, when it delivers the event, and the request to its receiver. It sends nothing and needs
no daemon. If a sink uses digests or batches, it shows one that contains only this event.

The id is an example; signatures are valid. Parts of addresses and headers that can be credentials are hidden. A plugin
is started to get its request, and stopped. If it provides none, the output shows its input.`,
		Example: `  hubrelay sinks explain -c hubrelay.yaml --event event.json
  echo '{"topic":"container.error"}' | hubrelay sinks explain -c hubrelay.yaml --event - --hub hub-1`,
		Args: command.WithUsageErrors(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if f.event == "" {
				return command.NewUsageError(cmd, errors.New("an event is required: use --event FILE, or --event - for "+
					"standard input"))
			}
			return explainSinks(cmd.Context(), std, build, &f)
		},
	}
	configFlag(cmd, &f.file)
	cmd.Flags().StringVar(&f.event, "event", "", "file with one notification as JSON, - for standard input")
	cmd.Flags().StringVar(&f.hub, "hub", "", "hub id, for an event without one")
	cmd.Flags().BoolVar(&f.asJSON, "json", false, "print JSON lines")
	return cmd
}

// explained is the result for one sink.
type explained struct {
	Sink    string            `json:"sink"`
	Type    string            `json:"type"`
	Matched bool              `json:"matched"`
	Reason  string            `json:"reason"`
	Timing  []string          `json:"timing,omitempty"`
	Request *explainedRequest `json:"request,omitempty"`
	Error   string            `json:"error,omitempty"`
}

type explainedRequest struct {
	Method  string            `json:"method"`
	Target  string            `json:"target"`
	Headers map[string]string `json:"headers"`
	Payload string            `json:"payload"`
	// Note and Also are as in [relay.Preview].
	Note string              `json:"note,omitempty"`
	Also []*explainedRequest `json:"also,omitempty"`

	inOrder []relay.Header
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
	if !f.asJSON {
		account := n.Account
		command.SetFirstNonEmpty(&account, "none")
		_, err := fmt.Fprintf(std.Out, "%s  hub %s  account %s\n", paint.Topic(term.Sanitize(n.Topic)),
			term.Sanitize(n.Hub), term.Sanitize(account))
		if err != nil {
			return err
		}
	}
	lines := json.NewEncoder(std.Out)
	lines.SetEscapeHTML(false)
	for _, name := range slices.Sorted(maps.Keys(cfg.Sinks)) {
		e, err := explainSink(ctx, cfg, build, name, n)
		switch {
		case err != nil:
			return fmt.Errorf("sink %s: %w", name, err)
		case f.asJSON:
			err = lines.Encode(e)
		default:
			err = printExplained(std.Out, paint, e)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// readEvent reads the event from a file or from standard input.
func readEvent(std term.Streams, cfg *daemon.Config, f *explainFlags) (relay.Notification, error) {
	if f.event == "-" {
		return daemon.ReadEvent(cfg, std.In, f.hub)
	}
	file, err := os.Open(f.event)
	if err != nil {
		return relay.Notification{}, err
	}
	defer func() { _ = file.Close() }()
	return daemon.ReadEvent(cfg, file, f.hub)
}

func explainSink(
	ctx context.Context, cfg *daemon.Config, build Build, name string, n relay.Notification,
) (explained, error) {
	e, err := daemon.Explain(ctx, cfg, build.Kinds.Sinks, build.Version, name, n)
	shown := explained{Sink: e.Sink, Type: e.Type, Matched: e.Matched, Reason: e.Reason, Timing: e.Timing}
	if e.Err != nil {
		shown.Error = e.Err.Error()
	}
	if e.Request != nil {
		shown.Request = requestOf(*e.Request)
		for _, followup := range e.Request.Followups {
			shown.Request.Also = append(shown.Request.Also, requestOf(followup))
		}
	}
	return shown, err
}

func requestOf(shown relay.Preview) *explainedRequest {
	r := &explainedRequest{
		Method: shown.Method, Target: shown.Target, Headers: map[string]string{}, Payload: string(
			shown.Payload), Note: shown.Note,
		inOrder: shown.Headers,
	}
	for _, h := range shown.Headers {
		r.Headers[h.Name] = h.Value
	}
	return r
}

func printExplained(w io.Writer, p term.Palette, e explained) error {
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
		r.write(&b, p)
		for _, another := range r.Also {
			b.WriteByte('\n')
			another.write(&b, p)
		}
	case e.Matched:
		fmt.Fprintf(&b, "  sinks of this type cannot show their requests\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func (r *explainedRequest) write(b *strings.Builder, p term.Palette) {
	fmt.Fprintf(b, "  %s %s\n", term.Sanitize(r.Method), term.Sanitize(r.Target))
	for _, h := range r.inOrder {
		fmt.Fprintf(b, "  %s: %s\n", p.Cyan(term.Sanitize(h.Name)), term.Sanitize(h.Value))
	}
	b.WriteByte('\n')
	for line := range strings.Lines(r.Payload) {
		fmt.Fprintf(b, "  %s\n", term.Sanitize(strings.TrimRight(line, "\r\n")))
	}
}
