package cli

import (
	"errors"
	"time"

	"github.com/spf13/cobra"

	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/demo"
	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/term"
)

func newDemo(std term.Streams, build Build) *cobra.Command {
	o := demo.Options{Version: build.Version, Kinds: build.Kinds}
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Run a relay with sample events, a client and a webhook receiver",
		Long: `Starts a relay on this machine with a temporary key, a webhook receiver, a websocket client and a steady
stream of sample events, and prints each event when it is published and received. It regularly moves an instance
between servers, which are local directories. It removes everything when it ends. If it was killed, the next demo cleans
up.`,
		Args: WithUsageErrors(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.Interval < time.Millisecond {
				return NewUsageError(cmd, errors.New("--every must be 1ms or more"))
			}
			return printProblems(std, demo.Run(cmd.Context(), std, o))
		},
	}
	cmd.Flags().StringVar(&o.Listen, "listen", "127.0.0.1:8080", "public address; a free port if it is in use")
	cmd.Flags().StringVar(&o.Health, "health", "127.0.0.1:9090",
		"address of /healthz, /readyz and /metrics; a free port if it is in use")
	cmd.Flags().DurationVar(&o.Interval, "every", 700*time.Millisecond, "interval between sample events")
	return cmd
}
