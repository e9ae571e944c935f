package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/app"
	"github.com/hubrelay/hubrelay/relay/config"
	"github.com/hubrelay/hubrelay/relay/ingest"
)

type explainFlags struct {
	file, event, hub string
	asJSON           bool
}

func newSinksExplain(std streams) *cobra.Command {
	var f explainFlags
	cmd := &cobra.Command{
		Use:   "explain -c FILE --event FILE",
		Short: "Say which sinks would get an event, why, and what they would send",
		Long: `Takes an event as a producer writes it, validates it as the relay would, and says for each sink of the configuration
whether it gets the event and by which rule, when, and what its receiver would see. Nothing is sent, and no daemon is
needed. Where a sink gathers, a digest or a batch of this one event is shown.

The id is one that the relay might give; signatures are valid. Parts of addresses and headers that may be credentials are
hidden. A plugin is started, asked what it would send, and ended; one that cannot say is shown with what it is given.`,
		Example: `  hubrelay sinks explain -c hubrelay.yaml --event event.json
  echo '{"topic":"container.error"}' | hubrelay sinks explain -c hubrelay.yaml --event - --hub hub-1`,
		Args: withUsageErrors(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if f.event == "" {
				return newUsageError(cmd, errors.New("an event is needed: give --event FILE, or --event - for standard input"))
			}
			return explainSinks(std, &f)
		},
	}
	configFlag(cmd, &f.file)
	cmd.Flags().StringVar(&f.event, "event", "", "file with one notification as JSON, - for standard input")
	cmd.Flags().StringVar(&f.hub, "hub", "", "hub id, for an event that names none")
	cmd.Flags().BoolVar(&f.asJSON, "json", false, "print JSON lines")
	return cmd
}

// explained is what is said of one sink.
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
	// Note and Also are as in [relay.Explanation].
	Note string              `json:"note,omitempty"`
	Also []*explainedRequest `json:"also,omitempty"`

	inOrder []relay.Header
}

func explainSinks(std streams, f *explainFlags) error {
	cfg, err := loadConfig(std, f.file)
	if err != nil {
		return err
	}
	n, err := readEvent(std, cfg, f)
	if err != nil {
		return err
	}
	paint := paletteFor(std.out, std.env)
	if !f.asJSON {
		account := n.Account
		firstNonEmpty(&account, "none")
		_, err := fmt.Fprintf(std.out, "%s  hub %s  account %s\n", paint.topic(sanitizeForTerminal(n.Topic)), sanitizeForTerminal(n.Hub), sanitizeForTerminal(account))
		if err != nil {
			return err
		}
	}
	lines := json.NewEncoder(std.out)
	lines.SetEscapeHTML(false)
	for _, name := range slices.Sorted(maps.Keys(cfg.Sinks)) {
		e, err := explainSink(name, cfg.Sinks[name], n)
		switch {
		case err != nil:
			return fmt.Errorf("sink %s: %w", name, err)
		case f.asJSON:
			err = lines.Encode(e)
		default:
			err = printExplained(std.out, paint, e)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// readEvent reads the event and brings it into the form in which it travels.
func readEvent(std streams, cfg *config.Config, f *explainFlags) (relay.Notification, error) {
	none := relay.Notification{}
	in := std.in
	if f.event != "-" {
		file, err := os.Open(f.event)
		if err != nil {
			return none, err
		}
		defer func() { _ = file.Close() }()
		in = file
	}
	data, err := io.ReadAll(io.LimitReader(in, ingest.MaxNotification+1))
	if err != nil {
		return none, fmt.Errorf("read the event: %w", err)
	}
	catalog, err := relay.NewCatalog(cfg.Notifications.ExtraTopics)
	if err != nil {
		return none, err
	}
	n, bad := ingest.NewDecoder(catalog).Decode(data, ingest.Defaults{Hub: f.hub, AnyAccount: true})
	if bad != nil {
		hint := ""
		if (bad.Source == "/context" || bad.Source == "/context/hub_id") && f.hub == "" {
			hint = "; write it into the event, or name its hub with --hub"
		}
		return none, fmt.Errorf("the relay would refuse the event: %s%s", sanitizeForTerminal(bad.Error()), hint)
	}
	return n, nil
}

func explainSink(name string, cfg config.Sink, n relay.Notification) (explained, error) {
	e := explained{Sink: name, Type: cfg.Type}
	filter, err := app.Filter(cfg)
	if err != nil {
		return e, err
	}
	if e.Matched, e.Reason = filter.Explain(n); !e.Matched {
		return e, nil
	}
	kinds := sinkKinds()
	i := slices.IndexFunc(kinds, func(k relay.SinkKind) bool { return k.Type == cfg.Type })
	if i < 0 {
		return e, fmt.Errorf("there is no kind %q", cfg.Type)
	}
	e.Timing = deliveryTiming(cfg, kinds[i].DigestWhenLimited, n)
	sink, err := kinds[i].Open(relay.SinkSettings{
		Name: name, Log: slog.New(slog.DiscardHandler), UserAgent: "hubrelay/" + buildVersion(),
	}, cfg.Settings)
	if err != nil {
		e.Error = err.Error()
		return e, nil
	}
	defer func() { _ = sink.Close() }()
	explainer, ok := sink.(relay.Explainer)
	if !ok {
		return e, nil
	}
	shown, err := explainer.Explain(deliveryOf(cfg, n))
	if err != nil {
		e.Error = err.Error()
		return e, nil
	}
	e.Request = requestOf(shown)
	for _, another := range shown.Followups {
		e.Request.Also = append(e.Request.Also, requestOf(another))
	}
	return e, nil
}

func requestOf(shown relay.Explanation) *explainedRequest {
	r := &explainedRequest{
		Method: shown.Method, Target: shown.Target, Headers: map[string]string{}, Payload: string(shown.Payload), Note: shown.Note,
		inOrder: shown.Headers,
	}
	for _, h := range shown.Headers {
		r.Headers[h.Name] = h.Value
	}
	return r
}

func printExplained(w io.Writer, p palette, e explained) error {
	var b strings.Builder
	verdict := p.dim("does not match")
	if e.Matched {
		verdict = p.green("matches")
	}
	fmt.Fprintf(&b, "\n%s (%s) %s: %s\n", p.bold(e.Sink), e.Type, verdict, sanitizeForTerminal(e.Reason))
	for _, text := range e.Timing {
		fmt.Fprintf(&b, "  %s\n", sanitizeForTerminal(text))
	}
	switch r := e.Request; {
	case e.Error != "":
		fmt.Fprintf(&b, "  %s: %s\n", p.red("cannot be shown"), sanitizeForTerminal(e.Error))
	case r != nil:
		if r.Note != "" {
			fmt.Fprintf(&b, "  %s\n", p.yellow(sanitizeForTerminal(r.Note)))
		}
		r.print(&b, p)
		for _, another := range r.Also {
			b.WriteByte('\n')
			another.print(&b, p)
		}
	case e.Matched:
		fmt.Fprintf(&b, "  a sink of this type does not show what it would send\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func (r *explainedRequest) print(b *strings.Builder, p palette) {
	fmt.Fprintf(b, "  %s %s\n", sanitizeForTerminal(r.Method), sanitizeForTerminal(r.Target))
	for _, h := range r.inOrder {
		fmt.Fprintf(b, "  %s: %s\n", p.cyan(sanitizeForTerminal(h.Name)), sanitizeForTerminal(h.Value))
	}
	b.WriteByte('\n')
	for line := range strings.Lines(r.Payload) {
		fmt.Fprintf(b, "  %s\n", sanitizeForTerminal(strings.TrimRight(line, "\r\n")))
	}
}
