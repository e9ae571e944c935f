package cli

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/command"
	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/demo"
	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/term"
)

type publishFlags struct {
	relayFlags
	single     demo.Event
	idempotent string
	command.Output
}

func newPublish(std term.Streams) *cobra.Command {
	var f publishFlags
	cmd := &cobra.Command{
		Use:   "publish [FILE | -]",
		Short: "Publish events",
		Long: `Publishes events and prints the ID of each.

FILE contains one event as JSON, a JSON array, or one event per line (NDJSON). "-" is standard input:
lines are sent as they arrive. Without FILE, --topic and the other flags describe one event.`,
		Example: `  hubrelay publish --topic container.created --container 5f0c
  hubrelay publish --topic container.created --container 5f0c --account acme   # with a key of the platform
  hubrelay publish events.json
  tail -f events.ndjson | hubrelay publish -`,
		Args: command.NamedArgs(0, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case len(args) == 1 && cmd.Flags().Changed("topic"):
				return command.NewUsageError(cmd, errors.New("use either a file or --topic, not both"))
			case len(args) == 1:
				if err := f.checkFileFlags(cmd, args[0]); err != nil {
					return command.NewUsageError(cmd, err)
				}
				return publishFile(cmd.Context(), std, &f, args[0])
			case f.single.Topic == "":
				return command.NewUsageError(cmd,
					errors.New("nothing to publish: use a file, - for standard input, or --topic"))
			}
			f.single.Context.HubID = f.hub
			body, err := json.Marshal(f.single)
			if err != nil {
				return err
			}
			return publishBody(cmd.Context(), std, &f, body)
		},
	}
	f.register(cmd, std)
	f.Register(cmd.Flags())
	flags := cmd.Flags()
	flags.StringVar(&f.single.Topic, "topic", "", "topic of a single event ('hubrelay topics' lists them)")
	flags.StringVar(&f.single.Context.AccountID, "account", "",
		"account ID (default: the account of the key; only a key with account_id \"*\" can set another one)")
	flags.StringVar(&f.single.Object.ID, "object", "",
		"object.id (default: the ID of the event)")
	flags.StringVar(&f.single.Object.State, "state", "", "object.state")
	flags.StringVar(&f.single.Object.Error, "error", "", "object.error")
	flags.StringSliceVar(&f.single.Context.Environments, "environment", nil, "environment ID; may be repeated")
	flags.StringSliceVar(&f.single.Context.Clusters, "cluster", nil, "cluster name; may be repeated")
	flags.StringSliceVar(&f.single.Context.Containers, "container", nil, "container ID; may be repeated")
	flags.StringSliceVar(&f.single.Context.DNSZones, "dns-zone", nil, "DNS zone ID; may be repeated")
	flags.StringVar(&f.idempotent, "idempotency-key", "",
		"text that makes it safe to repeat this call within 10 minutes (not for -)")
	return cmd
}

// checkFileFlags rejects flags that have no effect on notifications from a file.
func (f *publishFlags) checkFileFlags(cmd *cobra.Command, name string) error {
	for _, single := range []struct{ flag, member string }{
		{"account", "context.account_id"},
		{"object", "object.id"},
		{"state", "object.state"},
		{"error", "object.error"},
		{"environment", "context.environments"},
		{"cluster", "context.clusters"},
		{"container", "context.containers"},
		{"dns-zone", "context.dns_zones"},
	} {
		if cmd.Flags().Changed(single.flag) {
			return fmt.Errorf("--%s requires --topic: a file contains %s in each event", single.flag,
				single.member)
		}
	}
	if name != "-" {
		return nil
	}
	if f.idempotent != "" {
		return errors.New("--idempotency-key is for one request, and standard input can need several: " +
			"publish a file instead")
	}
	return f.CheckStream(cmd)
}

func publishFile(ctx context.Context, std term.Streams, f *publishFlags, name string) error {
	if name == "-" {
		return publishStream(ctx, std, f)
	}
	body, err := os.ReadFile(name)
	if errors.Is(err, syscall.ENAMETOOLONG) {
		err = fs.ErrNotExist // without the name, which is probably an event
	}
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w; FILE is a file with events: use - for standard input, or --topic for a single event", err)
	}
	if err != nil {
		return err
	}
	return publishBody(ctx, std, f, body)
}

func publishBody(ctx context.Context, std term.Streams, f *publishFlags, body []byte) error {
	// If the first line is incomplete JSON, the body is one JSON text over several lines, even if it is invalid.
	contentType := "application/x-ndjson"
	first, _, _ := bytes.Cut(bytes.TrimSpace(body), []byte("\n"))
	if json.Valid(body) || isPartOfText(first) {
		contentType = "application/json"
	}
	ids, err := f.newClient().Publish(ctx, contentType, f.idempotent, body)
	if err != nil {
		return err
	}
	return printIDs(std, &f.Output, ids)
}

// publishedID is the output for programs about a published event.
type publishedID struct {
	ID string `json:"id"`
}

func printIDs(std term.Streams, o *command.Output, ids []string) error {
	out := bufio.NewWriter(std.Out)
	list := o.NewList(out)
	for _, id := range ids {
		if o.IsTable() {
			_, _ = fmt.Fprintln(out, id)
		} else if err := list.Write(publishedID{ID: id}); err != nil {
			return err
		}
	}
	return errors.Join(list.Close(), out.Flush())
}
