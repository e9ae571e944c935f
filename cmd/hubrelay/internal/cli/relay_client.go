package cli

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"

	"github.com/spf13/cobra"

	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/command"
	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/term"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/client"
)

// relayFlags select the relay of a client command. Environment variables set their defaults.
type relayFlags struct{ url, key, hub string }

func (r *relayFlags) register(cmd *cobra.Command, std term.Streams) {
	cmd.Flags().StringVar(&r.url, "url", "", "address of the relay, or HUBRELAY_URL (default http://127.0.0.1:8080)")
	cmd.Flags().StringVar(&r.key, "key", "", "secret of the API key, not its name; prefer HUBRELAY_KEY, because other users can see flags")
	cmd.Flags().StringVar(&r.hub, "hub", "", "hub ID, or HUBRELAY_HUB")
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

// ErrorHint returns a hint for an error that another flag or environment variable of a client command can fix, or "".
func ErrorHint(err error) string {
	var response *client.Error
	switch {
	case isConnectionError(err):
		return "; is a relay running there? Set HUBRELAY_URL or --url to use another one"
	case errors.Is(err, http.ErrSchemeMismatch):
		return "; the relay there does not use TLS: use http:// in HUBRELAY_URL or --url"
	case !errors.As(err, &response):
		return ""
	case response.Code == relay.CodeMissingArgument && strings.Contains(response.Detail, "X-Hub-Id"):
		return "; set HUBRELAY_HUB or --hub"
	case response.Code == relay.CodeAuthInvalid:
		return "; set HUBRELAY_KEY or --key to a valid key"
	case response.Code == relay.CodeNoURI:
		return "; set HUBRELAY_URL or --url to the public address of the relay, which is server.listen and not " +
			"admin.listen"
	default:
		return ""
	}
}

// isConnectionError reports whether no connection could be opened.
func isConnectionError(err error) bool {
	var request *url.Error
	var network *net.OpError
	return errors.As(err, &request) && errors.As(err, &network) && network.Op == "dial"
}
