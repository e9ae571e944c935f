package cli

import (
	"fmt"
	"net/url"

	"github.com/spf13/cobra"

	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/command"
	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/term"
	"github.com/hubrelay/hubrelay/relay/client"
)

// relayFlags select the relay of a client command. Environment variables set their defaults.
type relayFlags struct{ url, key, hub string }

func (r *relayFlags) register(cmd *cobra.Command, std term.Streams) {
	cmd.Flags().StringVar(&r.url, "url", "", "address of the relay, or HUBRELAY_URL (default http://127.0.0.1:8080)")
	cmd.Flags().StringVar(&r.key, "key", "", "API key; prefer HUBRELAY_KEY, because other users can see flags")
	cmd.Flags().StringVar(&r.hub, "hub", "", "hub id, or HUBRELAY_HUB")
	cmd.PreRunE = func(cmd *cobra.Command, _ []string) error {
		command.SetFirstNonEmpty(&r.url, std.Getenv("HUBRELAY_URL"), "http://127.0.0.1:8080")
		command.SetFirstNonEmpty(&r.key, std.Getenv("HUBRELAY_KEY"))
		command.SetFirstNonEmpty(&r.hub, std.Getenv("HUBRELAY_HUB"))
		if r.key == "" {
			return command.NewUsageError(cmd, fmt.Errorf("an API key is required: set HUBRELAY_KEY or use --key"))
		}
		if u, err := url.Parse(r.url); err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
			return command.NewUsageError(cmd, fmt.Errorf("%q is not an address such as http://127.0.0.1:8080: set "+
				"HUBRELAY_URL or use --url", r.url))
		}
		return nil
	}
}

func (r *relayFlags) newClient() *client.Client {
	return &client.Client{URL: r.url, Key: r.key, Hub: r.hub}
}
