package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/term"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/spf13/cobra"
)

func newSinksTest(std term.Streams) *cobra.Command {
	var f adminFlags
	cmd := &cobra.Command{
		Use:   "test NAME",
		Short: "Send one sample to a sink's receiver",
		Long: `Lets the running daemon send one sample through the real sink, with its address, secrets and limits, and prints what
the receiver answered and how long it took. The sample is stored nowhere and not tried again. It ends with 1 unless the
receiver took it.`,
		Example: "  hubrelay sinks test billing",
		Args:    exactNamedArgs(1),
		RunE:    func(cmd *cobra.Command, args []string) error { return testSink(cmd.Context(), std, &f, args[0]) },
	}
	f.register(cmd, std)
	return cmd
}

func testSink(ctx context.Context, std term.Streams, f *adminFlags, name string) error {
	client, err := f.newClient(std)
	if err != nil {
		return err
	}
	var answer struct{ Data json.RawMessage }
	if err := client.post(ctx, sinkPath(name, "test"), nil, &answer); err != nil {
		return err
	}
	var result struct {
		Outcome      string
		Status       int
		Milliseconds float64
		Error        string
		Answer       string
	}
	if err := readAnswer(answer.Data, &result); err != nil {
		return err
	}
	if f.asJSON {
		if err := printRaw(std, answer.Data); err != nil {
			return err
		}
	}
	text := fmt.Sprintf("%s: %s", name, result.Outcome)
	if result.Status != 0 {
		text += fmt.Sprintf(", status %d", result.Status)
	}
	text += fmt.Sprintf(", %.0f ms", result.Milliseconds)
	switch {
	case result.Outcome != "delivered":
		firstNonEmpty(&result.Error, "the receiver did not take it")
		text += ": " + result.Error
		if line := firstLine(result.Answer); line != "" {
			text += fmt.Sprintf(" and said %q", line)
		}
		if result.Status >= 300 && result.Status < 400 {
			text += "; redirects are never followed, give the sink the address that this one leads to"
		}
		return errors.New(term.Sanitize(text + "; mend the receiver or the sink's settings and test again"))
	case f.asJSON:
		return nil
	}
	_, err = fmt.Fprintln(std.Out, term.Sanitize(text))
	return err
}

// longestSaid is how much of what a receiver answered fits into a line for people.
const longestSaid = 200

// firstLine is the first line of text that is not empty.
func firstLine(text string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(text), "\n")
	return relay.Truncate(strings.TrimSpace(line), longestSaid)
}
