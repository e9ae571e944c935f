package admincli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/command"
	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/term"
	"github.com/hubrelay/hubrelay/internal/adminapi"
)

// maxCredential is the maximum size of a credential or of claims, in bytes.
const maxCredential = 64 << 10

func newKeysCheck(std term.Streams) *cobra.Command {
	var f adminFlags
	var request adminapi.CheckKeyRequest
	cmd := &cobra.Command{
		Use:   "check NAME publish|read TOPIC --hub HUB",
		Short: "Check whether an API key may publish or read a topic",
		Long: `Reports whether the API key with a name may publish or read events of a topic in a hub, and why. The exit status is
1 if it may not, and also if the question cannot be answered; standard error then has the cause. 'streams explain --key NAME'
shows the events that the key sees.

` + adminHelp,
		Example: `  hubrelay keys check ci publish container.error --hub hub-1
  hubrelay keys check ci read container.error --hub hub-1 --account acme`,
		Args: command.ExactNamedArgs(3),
		RunE: func(cmd *cobra.Command, args []string) error {
			request.Action, request.Topic = args[1], args[2]
			switch {
			case request.Action != adminapi.ActionPublish && request.Action != adminapi.ActionRead:
				return command.NewUsageError(cmd, fmt.Errorf("unknown action %q: use publish or read", request.Action))
			case request.HubID == "":
				return command.NewUsageError(cmd, errors.New("specify the hub with --hub"))
			}
			access, err := connectAndCall(cmd.Context(), std, &f, adminapi.CheckKey(), request, args[0])
			if err != nil {
				return err
			}
			return printAccess(std, &f.Output, access)
		},
	}
	cmd.Flags().StringVar(&request.HubID, "hub", "", "hub of the events")
	cmd.Flags().StringVar(&request.AccountID, "account", "", "account of the event (default: an event without an account)")
	f.register(cmd, std)
	return cmd
}

func printAccess(std term.Streams, o *command.Output, access adminapi.KeyAccess) error {
	var err error
	if paint := term.NewPalette(std.Out, std.Env); !o.IsTable() {
		err = o.Print(std.Out, access)
	} else {
		answer := paint.Green("yes")
		if !access.Allowed {
			answer = paint.Red("no")
		}
		_, err = fmt.Fprintf(std.Out, "%s: %s\n", answer, term.Sanitize(access.Reason))
	}
	if err == nil && !access.Allowed {
		err = command.ErrReported
	}
	return err
}

func newStreams(std term.Streams) *cobra.Command {
	cmd := command.NewGroup("streams", "Explain what clients see", newStreamsExplain(std))
	cmd.Long = `Explains what clients see on a stream. 'connections list' shows the clients that are connected.

` + adminHelp
	return cmd
}

type explainStreamFlags struct {
	adminFlags
	request            adminapi.ExplainStreamRequest
	credential, claims string
}

func newStreamsExplain(std term.Streams) *cobra.Command {
	var f explainStreamFlags
	cmd := &cobra.Command{
		Use:   "explain --key NAME | --credential FILE | --claims FILE",
		Short: "Show which of the newest events a client sees, and why not the others",
		Long: `Shows whether a client may open a stream, and whether it sees each of the newest events in the log. For an event that
it does not see, the output names the rule that excludes it. The client has an API key (--key and its name), a
credential (--credential: an API key, a token, a JWT, or what auth.forward accepts), or the claims of a JWT (--claims).
Without --hub, the stream is that of the account.

Nothing is consumed: a token stays valid. The exit status is 1 if the client cannot open the stream.`,
		Example: `  hubrelay streams explain --key ci --hub hub-1 --topic 'container.*'
  hubrelay streams explain --credential token.txt
  echo '{"sub":"eve","exp":1893456000,"hubs":["hub-1"]}' | hubrelay streams explain --claims - --hub hub-1`,
		Args: command.ExactNamedArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := readExplainFlags(cmd, std, &f); err != nil {
				return err
			}
			e, err := connectAndCall(cmd.Context(), std, &f.adminFlags, adminapi.ExplainStream(), f.request)
			if err != nil {
				return err
			}
			return printStreamExplanation(std, &f.Output, &e)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&f.request.Key, "key", "", "name of an API key")
	flags.StringVar(&f.credential, "credential", "", "file with a credential, - for standard input")
	flags.StringVar(&f.claims, "claims", "", "file with the claims of a JWT as JSON, - for standard input")
	flags.StringVar(&f.request.HubID, "hub", "", "hub of the stream (default: the stream of the account, or that of the token)")
	flags.StringSliceVar(&f.request.Topics, "topic", nil, "topics that the client requests, a pattern such as '*.error'; may be repeated")
	flags.IntVar(&f.request.Limit, "limit", 20, "maximum number of events, up to 500")
	f.register(cmd, std)
	return cmd
}

// readExplainFlags sets the members of the request that are in files.
func readExplainFlags(cmd *cobra.Command, std term.Streams, f *explainStreamFlags) error {
	given := 0
	for _, value := range []string{f.request.Key, f.credential, f.claims} {
		if value != "" {
			given++
		}
	}
	switch {
	case given != 1:
		return command.NewUsageError(cmd, errors.New("specify one of --key, --credential and --claims"))
	case f.request.Limit < 1 || f.request.Limit > maxSearchPage:
		return command.NewUsageError(cmd, fmt.Errorf("--limit must be from 1 to %d", maxSearchPage))
	}
	var err error
	if f.credential != "" {
		var text []byte
		text, err = command.ReadFile(std, f.credential, maxCredential)
		if f.request.Credential = strings.TrimSpace(string(text)); err == nil && f.request.Credential == "" {
			err = command.NewUsageError(cmd, errors.New("the credential is empty"))
		}
	}
	if f.claims != "" {
		f.request.Claims, err = command.ReadFile(std, f.claims, maxCredential)
		if err == nil && json.Unmarshal(f.request.Claims, new(map[string]any)) != nil {
			err = command.NewUsageError(cmd, fmt.Errorf("%s is not a JSON object", f.claims))
		}
	}
	return err
}

func printStreamExplanation(std term.Streams, o *command.Output, e *adminapi.StreamExplanation) error {
	paint := term.NewPalette(std.Out, std.Env)
	var err error
	switch r := e.Rejection; {
	case !o.IsTable():
		err = o.Print(std.Out, e)
	case r != nil:
		_, err = fmt.Fprintf(std.Out, "%s: %s (%s)\n", paint.Red("the client cannot open the stream"),
			term.Sanitize(r.Detail), term.Sanitize(r.Code))
	default:
		err = printStreamEvents(std, paint, e)
	}
	if err == nil && e.Rejection != nil {
		err = command.ErrReported
	}
	return err
}

func printStreamEvents(std term.Streams, paint term.Palette, e *adminapi.StreamExplanation) error {
	if _, err := io.WriteString(std.Out, describeStream(paint, e)); err != nil || len(e.Events) == 0 {
		return err
	}
	rows := make([][]string, len(e.Events))
	for i, event := range e.Events {
		visible := "yes"
		if !event.Visible {
			visible = "no"
		}
		rows[i] = newRow(visible, event.ID, formatTime(event.Time), event.Topic, event.HubID, event.AccountID, event.Detail)
	}
	return term.PrintTableWithin(std.Out, paint, term.Width(std.Out), []term.Column{
		{Title: "VISIBLE", Paint: func(cell, padded string) string {
			if cell == "yes" {
				return paint.Green(padded)
			}
			return paint.Yellow(padded)
		}},
		{Title: "ID"},
		{Title: "TIME", DropOrder: 1},
		{Title: "TOPIC", Paint: topicPainter(paint)},
		{Title: "HUB", MaxWidth: 24, DropOrder: 2},
		{Title: "ACCOUNT", MaxWidth: 24, DropOrder: 3},
		{Title: "REASON", MinWidth: 32},
	}, rows)
}

// describeStream returns the lines above the events.
func describeStream(paint term.Palette, e *adminapi.StreamExplanation) string {
	stream, account, visible := "account "+e.AccountID, e.AccountID, 0
	switch {
	case e.HubID != "":
		stream = "hub " + e.HubID
	case e.AccountID == "":
		stream = "events without an account"
	}
	if account == "" {
		account = "none, so only events without an account"
	}
	for i := range e.Events {
		if e.Events[i].Visible {
			visible++
		}
	}
	topics := "all"
	if len(e.Topics) > 0 {
		topics = strings.Join(e.Topics, ", ")
	}
	var b strings.Builder
	line := fieldWriter(&b, paint, 8)
	line("key", e.Key)
	line("stream", stream)
	line("hubs", orDash(strings.Join(e.Hubs, ", ")))
	line("account", account)
	line("topics", topics)
	line("networks", strings.Join(e.Networks, ", "))
	line("expires", formatTime(e.ExpiresAt))
	if len(e.Events) == 0 {
		b.WriteString("\nThe log has no events.\n")
	} else {
		fmt.Fprintf(&b, "\nThe client sees %d of the newest %s:\n\n", visible, term.Pluralize(len(e.Events), "event"))
	}
	return b.String()
}
