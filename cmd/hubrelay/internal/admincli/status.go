package admincli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/command"
	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/term"
	"github.com/hubrelay/hubrelay/internal/adminapi"
)

func newStatus(std term.Streams) *cobra.Command {
	var f adminFlags
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the health of the relay: storage, log, streams, nodes",
		Long: `Shows the state of the relay: whether this node is ready, the memory of Redis, the events in the log, the clients of
streams of this node, and the nodes that are running. 'hubrelay sinks list' shows the sinks.

` + adminHelp,
		Example: `  hubrelay status
  hubrelay status -o json | jq .storage`,
		Args: command.ExactNamedArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return callAndPrint(cmd.Context(), std, &f, adminapi.ShowStatus(), adminapi.Empty{},
				func(s adminapi.Status) error { return printStatus(std, &s) })
		},
	}
	f.register(cmd, std)
	return cmd
}

func printStatus(std term.Streams, s *adminapi.Status) error {
	var b strings.Builder
	line := fieldWriter(&b, term.NewPalette(std.Out, std.Env), 8)
	line("node", fmt.Sprintf("%s, version %s, started %s (%s ago)", s.Node, s.Version, formatTime(s.StartedAt),
		term.FormatAgo(s.StartedAt)))
	line("nodes", strings.Join(s.Nodes, ", "))
	ready := "yes"
	if s.NotReady != "" {
		ready = "no: " + s.NotReady
	}
	line("ready", ready)
	storage := term.FormatBytes(s.Storage.UsedBytes) + " used, no limit"
	if s.Storage.MaxBytes > 0 {
		storage = fmt.Sprintf("%s of %s used (%d%%)", term.FormatBytes(s.Storage.UsedBytes), term.FormatBytes(s.Storage.MaxBytes),
			100*s.Storage.UsedBytes/s.Storage.MaxBytes)
	}
	line("storage", storage)
	log := term.FormatCount(s.Log.Events) + " events"
	if s.Log.Events == 1 {
		log = "1 event"
	}
	if !s.Log.OldestAt.IsZero() {
		log += ", the oldest from " + formatTime(s.Log.OldestAt)
	}
	if s.Log.Stored >= 0 {
		log += ", " + term.FormatCount(s.Log.Stored) + " stored since the start of the log"
	}
	line("log", log)
	line("streams", fmt.Sprintf("%s on %s, %s queued", term.Pluralize(s.Streams.Clients, "client"), s.Node,
		term.FormatBytes(int64(s.Streams.QueuedBytes))))
	_, err := std.Out.Write([]byte(b.String()))
	return err
}
