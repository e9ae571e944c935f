package main

import (
	"errors"
	"time"

	"github.com/spf13/cobra"
)

func newDemo(std streams, build Build) *cobra.Command {
	o := demoOptions{version: build.Version, kinds: build.Kinds}
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Start a relay with sample events, a listener and a webhook receiver, and watch what travels where",
		Long: `Starts a relay on this machine with a throwaway key, a webhook receiver, a websocket listener and a steady stream
of sample events, and prints what travels where. Now and then it moves an instance between servers, which are folders here.
Nothing is left behind when it ends; where it was killed, the next demo clears up.`,
		Args: withUsageErrors(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.interval < time.Millisecond {
				return newUsageError(cmd, errors.New("--every must be 1ms or more"))
			}
			return printProblems(std, runDemo(cmd.Context(), std, o))
		},
	}
	cmd.Flags().StringVar(&o.listen, "listen", "127.0.0.1:8080", "public address; a free port where it is taken")
	cmd.Flags().StringVar(&o.health, "health", "127.0.0.1:9090", "address of /healthz, /readyz and /metrics; a free port if it is taken")
	cmd.Flags().DurationVar(&o.interval, "every", 700*time.Millisecond, "time between two sample events")
	return cmd
}
