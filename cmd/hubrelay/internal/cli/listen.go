package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/command"
	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/term"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/client"
)

func newListen(std term.Streams) *cobra.Command {
	var (
		r      relayFlags
		topics []string
		after  string
		since  string
		output command.Output
	)
	cmd := &cobra.Command{
		Use:   "listen [PATTERN...]",
		Short: "Print events of a hub or an account as they arrive",
		Long: `Opens the websocket stream and prints each event as it arrives, until interrupted. It reconnects
after a lost connection and continues after the last event. The message hubrelay.resync means that
events were lost. Patterns select topics, like --topic. Without a hub it prints the events of all hubs that
the key can read. With --since it starts with stored events.`,
		Example: `  hubrelay listen --hub 5f0c
  hubrelay listen --since 2h
  hubrelay listen 'container.*' '!*.error' -o jsonl | jq .object`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := output.CheckStream(cmd); err != nil {
				return err
			}
			if err := command.RejectTogether(cmd, "since", "after"); err != nil {
				return err
			}
			if _, err := command.ParseTimeFlag("after", after, time.Now()); err == nil {
				return command.NewUsageError(cmd, errors.New("--after is a cursor; for an age or a time use --since"))
			}
			if since != "" {
				t, err := command.ParseTimeFlag("since", since, time.Now())
				if err != nil {
					return command.NewUsageError(cmd, err)
				}
				after = t.UTC().Format(time.RFC3339Nano)
			}
			log := slog.New(newRepeatLimiter(term.NewLogHandler(std.Err, slog.LevelInfo, std.Env)))
			return listen(cmd.Context(), std, r.newClient(), log, client.ListenOptions{
				Topics: append(topics, args...), After: after, Metadata: true,
			}, &output)
		},
	}
	r.register(cmd, std)
	cmd.Flags().StringSliceVar(&topics, "topic", nil, "only these topics, a pattern such as '*.error'; may be repeated")
	cmd.Flags().SetNormalizeFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
		if name == "topics" { // the name in earlier builds
			name = "topic"
		}
		return pflag.NormalizedName(name)
	})
	cmd.Flags().StringVar(&after, "after", "", "start after this cursor; -o jsonl prints the cursor of each event")
	cmd.Flags().StringVar(&since, "since", "", "start with stored events newer than an age such as 2h, or a time (RFC 3339)")
	output.Register(cmd.Flags())
	return cmd
}

func listen(ctx context.Context, std term.Streams, c *client.Client, log *slog.Logger, o client.ListenOptions,
	output *command.Output,
) error {
	c.Log = log
	paint := term.NewPalette(std.Out, std.Env)
	out := bufio.NewWriter(std.Out)
	for n, err := range c.Listen(ctx, o) {
		if errors.Is(err, context.Canceled) {
			return nil
		}
		if err != nil {
			return err
		}
		if output.IsTable() {
			_, err = fmt.Fprintln(out, formatNotification(paint, n))
		} else {
			err = output.Print(out, n.Data)
		}
		if err := errors.Join(err, out.Flush()); err != nil {
			return err
		}
	}
	return nil
}

// maxErrorBytes limits the error text that formatNotification shows.
const maxErrorBytes = 200

// formatNotification returns a notification as one line for people.
func formatNotification(paint term.Palette, n relay.Notification) string {
	var b strings.Builder
	at := n.StoredAt().Local()
	if at.IsZero() {
		at = time.Now()
	}
	b.WriteString(paint.Dim(at.Format("15:04:05")) + " ")
	b.WriteString(paint.Topic(fmt.Sprintf("%-40s", term.Sanitize(n.Topic))))
	e, err := n.Envelope()
	if err != nil {
		return b.String()
	}
	part := func(name, value string) {
		if value != "" {
			b.WriteString(" " + paint.Dim(name+"=") + term.Sanitize(value))
		}
	}
	part("state", e.Object.State)
	if e.Object.Error != "" {
		b.WriteString(" " + paint.Dim("error=") +
			paint.Red(term.Sanitize(relay.Truncate(e.Object.Error, maxErrorBytes))))
	}
	if job := term.ParseJobEvent(n); job != nil {
		part("step", job.StepText())
		part("server", job.Route())
		if e.Object.ID != job.Object.InstanceID {
			part("instance", job.Object.InstanceID)
		}
		if e.Object.ID != job.Object.JobID {
			part("job", job.Object.JobID)
		}
	}
	part("object", e.Object.ID)
	part("hub", e.Context.HubID)
	part("containers", strings.Join(e.Context.Containers, ","))
	part("environments", strings.Join(e.Context.Environments, ","))
	part("clusters", strings.Join(e.Context.Clusters, ","))
	part("dns_zones", strings.Join(e.Context.DNSZones, ","))
	part("event", n.ID)
	return b.String()
}
