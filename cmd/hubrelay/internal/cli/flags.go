package cli

import (
	"fmt"
	"io"
	"net/url"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/term"
	"github.com/hubrelay/hubrelay/internal/durations"
	"github.com/hubrelay/hubrelay/relay/client"
)

// relayFlags select the relay of a client command. Environment variables set their defaults.
type relayFlags struct{ url, key, hub string }

func (r *relayFlags) register(cmd *cobra.Command, std term.Streams) {
	cmd.Flags().StringVar(&r.url, "url", "", "address of the relay, or HUBRELAY_URL (default http://127.0.0.1:8080)")
	cmd.Flags().StringVar(&r.key, "key", "", "API key; prefer HUBRELAY_KEY, because other users can see flags")
	cmd.Flags().StringVar(&r.hub, "hub", "", "hub id, or HUBRELAY_HUB")
	cmd.PreRunE = func(cmd *cobra.Command, _ []string) error {
		firstNonEmpty(&r.url, std.Getenv("HUBRELAY_URL"), "http://127.0.0.1:8080")
		firstNonEmpty(&r.key, std.Getenv("HUBRELAY_KEY"))
		firstNonEmpty(&r.hub, std.Getenv("HUBRELAY_HUB"))
		if r.key == "" {
			return NewUsageError(cmd, fmt.Errorf("an API key is required: set HUBRELAY_KEY or use --key"))
		}
		if u, err := url.Parse(r.url); err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
			return NewUsageError(cmd, fmt.Errorf("%q is not an address such as http://127.0.0.1:8080: set "+
				"HUBRELAY_URL or use --url", r.url))
		}
		return nil
	}
}

func (r *relayFlags) newClient() *client.Client {
	return &client.Client{URL: r.url, Key: r.key, Hub: r.hub}
}

// firstNonEmpty sets value to the first choice that is not empty, unless it is set already.
func firstNonEmpty(value *string, choices ...string) {
	for _, c := range choices {
		if *value == "" {
			*value = c
		}
	}
}

// fixTimeFlag replaces an age in the value of a flag by the time (RFC 3339), so all requests of a command select the same. An
// empty value stays empty.
func fixTimeFlag(cmd *cobra.Command, flag string, value *string) error {
	if *value == "" {
		return nil
	}
	at, err := parseTimeFlag(flag, *value, time.Now())
	if err != nil {
		return NewUsageError(cmd, err)
	}
	*value = at.UTC().Format(time.RFC3339Nano)
	return nil
}

// parseTimeFlag parses the value of a flag, an age or a time (RFC 3339).
func parseTimeFlag(flag, text string, now time.Time) (time.Time, error) {
	if d, err := durations.Parse(text); err == nil && d >= 0 {
		return now.Add(-d), nil
	}
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return at, fmt.Errorf("--%s %q is neither a duration such as 2h nor a time such as 2026-11-20T08:00:00Z",
			flag, text)
	}
	return at, nil
}

// readFile reads a file of up to limit bytes, or standard input if the name is "-".
func readFile(std term.Streams, name string, limit int) ([]byte, error) {
	in := std.In
	if name != "-" {
		file, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		defer func() { _ = file.Close() }()
		in = file
	}
	text, err := io.ReadAll(io.LimitReader(in, int64(limit)+1))
	if err == nil && len(text) > limit {
		err = fmt.Errorf("%s has more than %d bytes", name, limit)
	}
	return text, err
}
