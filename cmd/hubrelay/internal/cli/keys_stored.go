package cli

import (
	"encoding/json"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/term"
	"github.com/hubrelay/hubrelay/internal/durations"
)

// keyInfo is an API key in the admin API.
type keyInfo struct {
	Name            string     `json:"name"`
	Source          string     `json:"source"`
	AccountID       string     `json:"account_id"`
	Hubs            []string   `json:"hubs"`
	Capabilities    []string   `json:"capabilities"`
	Topics          []string   `json:"topics"`
	Networks        []string   `json:"networks"`
	Expires         *time.Time `json:"expires"`
	PreviousExpires *time.Time `json:"previous_expires"`
	LastUsed        *time.Time `json:"last_used_at"`
}

// createdKey is the response to a request that created a secret.
type createdKey struct {
	Name            string     `json:"name"`
	Key             string     `json:"key"`
	PreviousExpires *time.Time `json:"previous_expires"`
}

func keyPath(name, verb string) string { return "/api/keys/" + url.PathEscape(name) + "/" + verb }

func newKeysCreate(std term.Streams) *cobra.Command {
	var f adminFlags
	// The admin API defines the fields.
	var spec struct {
		AccountID    string     `json:"account_id"`
		Hubs         []string   `json:"hubs"`
		Capabilities []string   `json:"capabilities"`
		Topics       []string   `json:"topics"`
		Networks     []string   `json:"networks"`
		Expires      *time.Time `json:"expires,omitempty"`
	}
	var expires string
	cmd := &cobra.Command{
		Use:   "create NAME",
		Short: "Create an API key in a running daemon",
		Long: `Creates an API key that is valid on all nodes within a second, and prints its secret. Redis stores only a hash.

` + adminHelp,
		Example: `  hubrelay keys create ci --account acme --hub hub-1 --capability notifications-publish --expires 720h`,
		Args:    exactNamedArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if expires != "" {
				at, err := parseExpiry(expires, time.Now())
				if err != nil {
					return NewUsageError(cmd, err)
				}
				spec.Expires = &at
			}
			return createKey(cmd, std, &f, args[0], "create", &spec)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&spec.AccountID, "account", "", `account whose notifications the key sees; "*" for all`)
	flags.StringArrayVar(&spec.Hubs, "hub", nil, `hub that the key may access, repeatable; "*" for all`)
	flags.StringArrayVar(&spec.Capabilities, "capability", nil, "additional permission, repeatable: "+
		"notifications-publish, containers-instances-migrate")
	flags.StringArrayVar(&spec.Topics, "topic", nil, "pattern of the topics that the key may publish, repeatable "+
		"(default all)")
	flags.StringArrayVar(&spec.Networks, "network", nil, "network from which the key may be used, repeatable "+
		"(default all)")
	flags.StringVar(&expires, "expires", "", "duration such as 30d, or date such as 2027-01-31; default never")
	f.register(cmd, std)
	return cmd
}

// parseExpiry parses a duration from now, a date, or a time of RFC 3339.
func parseExpiry(text string, now time.Time) (time.Time, error) {
	if d, err := durations.Parse(text); err == nil {
		return now.Add(d).UTC().Truncate(time.Second), nil
	}
	for _, layout := range []string{time.DateOnly, time.RFC3339} {
		if t, err := time.Parse(layout, text); err == nil {
			return t, nil
		}
	}
	return time.Time{}, fmt.Errorf("--expires %q is neither a duration such as 30d nor a date such as 2027-01-31",
		text)
}

func newKeysRotate(std term.Streams) *cobra.Command {
	var f adminFlags
	overlap := time.Hour
	cmd := &cobra.Command{
		Use:   "rotate NAME",
		Short: "Replace the secret of an API key of a running daemon",
		Long: `Creates a new secret for a key and prints it. The old secret stays valid for --overlap. Then its streams
end.

` + adminHelp,
		Example: "  hubrelay keys rotate ci --overlap 24h",
		Args:    exactNamedArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return createKey(cmd, std, &f, args[0], "rotate", map[string]string{"overlap": overlap.String()})
		},
	}
	cmd.Flags().Var((*durations.Value)(&overlap), "overlap", "time for which the old secret stays valid, 0s to 30d")
	f.register(cmd, std)
	return cmd
}

// createKey sends a request that creates a secret, and prints the secret.
func createKey(cmd *cobra.Command, std term.Streams, f *adminFlags, name, verb string, request any) error {
	client, err := f.newClient(std)
	if err != nil {
		return err
	}
	var answer struct{ Data json.RawMessage }
	if err := client.post(cmd.Context(), keyPath(name, verb), request, &answer); err != nil {
		return err
	}
	if f.asJSON {
		return printRaw(std, answer.Data)
	}
	var k createdKey
	if err := decodeData(answer.Data, &k); err != nil {
		return err
	}
	if _, err := fmt.Fprintln(std.Out, term.Sanitize(k.Key)); err != nil {
		return err
	}
	note := "The key is not shown again."
	if k.PreviousExpires != nil {
		note += " The old one is valid until " + formatTime(k.PreviousExpires) + "."
	}
	_, err = fmt.Fprintln(std.Err, note)
	return err
}

func newKeysRevoke(std term.Streams) *cobra.Command {
	var f adminFlags
	cmd := &cobra.Command{
		Use:   "revoke NAME",
		Short: "Remove an API key of a running daemon and end its streams",
		Long: `Removes a key. Within a second, its tokens and streams end on all nodes.

` + adminHelp,
		Example: "  hubrelay keys revoke ci",
		Args:    exactNamedArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			client, err := f.newClient(std)
			if err != nil {
				return err
			}
			var answer struct{ Data json.RawMessage }
			if err := client.post(cmd.Context(), keyPath(args[0], "revoke"), nil, &answer); err != nil {
				return err
			}
			if f.asJSON {
				return printRaw(std, answer.Data)
			}
			_, err = fmt.Fprintln(std.Out, term.Sanitize(args[0]+" is revoked"))
			return err
		},
	}
	f.register(cmd, std)
	return cmd
}

func newKeysList(std term.Streams) *cobra.Command {
	var f adminFlags
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the API keys of a running daemon",
		Long: `Lists the API keys of the configuration and the keys that were created at run time, without their
secrets. LAST USED is accurate to about a minute.

` + adminHelp,
		Args: WithUsageErrors(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			client, err := f.newClient(std)
			if err != nil {
				return err
			}
			var answer struct{ Data []json.RawMessage }
			if err := client.get(cmd.Context(), "/api/keys", nil, &answer); err != nil {
				return err
			}
			if f.asJSON {
				return printRaw(std, answer.Data...)
			}
			return printKeys(std, answer.Data)
		},
	}
	f.register(cmd, std)
	return cmd
}

func printKeys(std term.Streams, list []json.RawMessage) error {
	if len(list) == 0 {
		_, err := fmt.Fprintln(std.Out, "no keys")
		return err
	}
	var rows [][]string
	for _, raw := range list {
		var k keyInfo
		if err := decodeData(raw, &k); err != nil {
			return err
		}
		row := []string{
			k.Name, k.Source, k.AccountID, strings.Join(k.Hubs, ","), formatTime(k.Expires), formatTime(k.LastUsed),
			strings.Join(k.Capabilities, ","), strings.Join(k.Topics, ","), strings.Join(k.Networks, ","),
		}
		for i := range row {
			row[i] = orDash(term.Sanitize(row[i]))
		}
		rows = append(rows, row)
	}
	return term.PrintTableWithin(std.Out, term.NewPalette(std.Out, std.Env), term.Width(std.Out), []term.Column{
		{Title: "NAME"},
		{Title: "SOURCE"},
		{Title: "ACCOUNT"},
		{Title: "HUBS"},
		{Title: "EXPIRES"},
		{Title: "LAST USED"},
		{Title: "CAPABILITIES", DropOrder: 3},
		{Title: "TOPICS", DropOrder: 1},
		{Title: "NETWORKS", DropOrder: 2},
	}, rows)
}

func formatTime(t *time.Time) string {
	if t == nil || t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339)
}
