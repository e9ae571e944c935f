package admincli

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/command"
	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/term"
	"github.com/hubrelay/hubrelay/internal/adminapi"
	"github.com/hubrelay/hubrelay/internal/durations"
	"github.com/hubrelay/hubrelay/internal/envelope"
	"github.com/hubrelay/hubrelay/relay"
)

func newKeys(std term.Streams, keysNew *cobra.Command) *cobra.Command {
	return command.NewGroup("keys", "Create, list, check, rotate and revoke API keys, and create webhook secrets", keysNew,
		newKeysCreate(std), newKeysList(std), newKeysCheck(std), newKeysRotate(std), newKeysRevoke(std))
}

func newKeysCreate(std term.Streams) *cobra.Command {
	var f adminFlags
	var spec adminapi.KeySpec
	var expires string
	cmd := &cobra.Command{
		Use:   "create NAME",
		Short: "Create an API key in a running relay",
		Long: `Creates an API key that is valid on all nodes within a second, and prints its secret. Redis stores only a hash.

` + adminHelp,
		Example: `  hubrelay keys create ci --account acme --hub hub-1 --capability notifications-publish --expires 720h`,
		Args:    command.ExactNamedArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if expires != "" {
				at, err := parseExpiry(expires, time.Now())
				if err != nil {
					return command.NewUsageError(cmd, err)
				}
				spec.ExpiresAt = at
			}
			if len(spec.Hubs) == 0 {
				return command.NewUsageError(cmd, errors.New(`--hub is missing: name each hub, or use --hub "*" for all`))
			}
			warnKeySpec(std, &spec)
			err := callAndPrint(cmd.Context(), std, &f, adminapi.CreateKey(), spec, printCreatedKey(std), args[0])
			return nameKeyFlags(err, &spec)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&spec.AccountID, "account", "", `account whose events the key sees, besides events without an account; "*" for all`)
	flags.StringArrayVar(&spec.Hubs, "hub", nil, `hub that the key may access, "*" for all; may be repeated`)
	flags.StringArrayVar(&spec.Capabilities, "capability", nil, "permission besides reading: "+
		"notifications-publish, containers-instances-migrate; may be repeated")
	flags.StringArrayVar(&spec.Topics, "topic", nil, "pattern of the topics that the key may publish (default all); "+
		"may be repeated")
	flags.StringArrayVar(&spec.Networks, "network", nil, "network from which the key may be used (default all); "+
		"may be repeated")
	flags.StringVar(&expires, "expires", "", "duration such as 30d, or date such as 2027-01-31; default never")
	f.register(cmd, std)
	return cmd
}

// keySpecPath matches the path of a field at the start of a problem, such as hubs[0].
var keySpecPath = regexp.MustCompile(`(^|; )(account_id|(hubs|capabilities|topics|networks)\[(\d+)\]): `)

// nameKeyFlags replaces the fields in an error of the relay about a key by the flags that set them.
func nameKeyFlags(err error, spec *adminapi.KeySpec) error {
	var rejected *envelope.Error
	if !errors.As(err, &rejected) {
		return err
	}
	flags := map[string]struct {
		name   string
		values []string
	}{
		"hubs": {"hub", spec.Hubs}, "capabilities": {"capability", spec.Capabilities},
		"topics": {"topic", spec.Topics}, "networks": {"network", spec.Networks},
	}
	rejected.Detail = keySpecPath.ReplaceAllStringFunc(rejected.Detail, func(match string) string {
		groups := keySpecPath.FindStringSubmatch(match)
		flag, value := "account", spec.AccountID
		if list, ok := flags[groups[3]]; ok {
			i, err := strconv.Atoi(groups[4])
			if err != nil || i >= len(list.values) {
				return match
			}
			flag, value = list.name, list.values[i]
		}
		return fmt.Sprintf("%s--%s %q: ", groups[1], flag, relay.Truncate(value, maxQuotedValue))
	})
	return err
}

// maxQuotedValue limits a quoted value in an error, in bytes.
const maxQuotedValue = 60

// warnKeySpec warns about settings of a key that have no effect, or less than expected.
func warnKeySpec(std term.Streams, spec *adminapi.KeySpec) {
	const publish = "notifications-publish"
	if len(spec.Topics) > 0 && !slices.Contains(spec.Capabilities, publish) {
		_, _ = fmt.Fprintln(std.Err, "warning: --topic has no effect, because the key may not publish; add --capability "+publish)
	}
	if spec.AccountID == "" && len(spec.Capabilities) == 0 {
		_, _ = fmt.Fprintln(std.Err, "warning: the key sees only events without an account; use --account to name its account, "+
			`or --account "*" for all`)
	}
}

// parseExpiry parses the time of --expires, which must be in the future.
func parseExpiry(text string, now time.Time) (time.Time, error) {
	at, err := parseTime(text, now)
	switch {
	case err != nil:
		return at, fmt.Errorf("--expires %q is neither a duration such as 30d nor a date such as 2027-01-31", text)
	case !at.After(now):
		return at, fmt.Errorf("--expires %s is in the past", text)
	}
	return at, nil
}

// parseTime parses a duration from now, a date, or a time of RFC 3339.
func parseTime(text string, now time.Time) (time.Time, error) {
	if d, err := durations.Parse(text); err == nil {
		return now.Add(d).UTC(), nil
	}
	if at, err := time.Parse(time.DateOnly, text); err == nil {
		return at, nil
	}
	return time.Parse(time.RFC3339, text)
}

func newKeysRotate(std term.Streams) *cobra.Command {
	var f adminFlags
	overlap := time.Hour
	cmd := &cobra.Command{
		Use:   "rotate NAME",
		Short: "Replace the secret of an API key of a running relay",
		Long: `Creates a new secret for a key and prints it. The old secret stays valid for --overlap. Then its streams
end.

` + adminHelp,
		Example: "  hubrelay keys rotate ci --overlap 24h",
		Args:    command.ExactNamedArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			request := adminapi.RotateKeyRequest{Overlap: overlap.String()}
			return callAndPrint(cmd.Context(), std, &f, adminapi.RotateKey(), request, printCreatedKey(std), args[0])
		},
	}
	cmd.Flags().Var((*durations.Value)(&overlap), "overlap", "time for which the old secret stays valid, 0s to 30d")
	f.register(cmd, std)
	return cmd
}

// printCreatedKey prints a new secret on standard output, and a note on standard error.
func printCreatedKey(std term.Streams) func(adminapi.CreatedKey) error {
	return func(k adminapi.CreatedKey) error {
		if _, err := fmt.Fprintln(std.Out, term.Sanitize(k.Key)); err != nil {
			return err
		}
		note := "The key is not shown again."
		if !k.PreviousExpiresAt.IsZero() {
			note += " The old one is valid until " + formatTime(k.PreviousExpiresAt) + "."
		}
		_, err := fmt.Fprintln(std.Err, note)
		return err
	}
}

func newKeysRevoke(std term.Streams) *cobra.Command {
	var f adminFlags
	cmd := &cobra.Command{
		Use:   "revoke NAME",
		Short: "Revoke an API key of a running relay and end its streams",
		Long: `Removes a key. Within a second, its tokens and streams end on all nodes.

` + adminHelp,
		Example: "  hubrelay keys revoke ci",
		Args:    command.ExactNamedArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return callAndPrint(cmd.Context(), std, &f, adminapi.RevokeKey(), adminapi.Empty{}, func(adminapi.RevokedKey) error {
				_, err := fmt.Fprintln(std.Out, term.Sanitize(args[0]+" is revoked"))
				return err
			}, args[0])
		},
	}
	f.register(cmd, std)
	return cmd
}

func newKeysList(std term.Streams) *cobra.Command {
	var f adminFlags
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the API keys of a running relay",
		Long: `Lists the API keys of the configuration and the keys that were created at run time (ORIGIN is stored), without their
secrets. LAST USED is accurate to about a minute.

` + adminHelp,
		Args: command.ExactNamedArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return callAndPrintList(cmd.Context(), std, &f, adminapi.ListKeys(),
				func(list []adminapi.Key) error { return printKeys(std, list) }, "no keys")
		},
	}
	f.register(cmd, std)
	return cmd
}

func printKeys(std term.Streams, list []adminapi.Key) error {
	var rows [][]string
	for i := range list {
		k := &list[i]
		rows = append(rows, newRow(
			k.Name, k.Origin, k.AccountID, strings.Join(k.Hubs, ","), formatTime(k.ExpiresAt), term.FormatAgo(k.LastUsedAt),
			strings.Join(k.Capabilities, ","), strings.Join(k.Topics, ","), strings.Join(k.Networks, ","),
		))
	}
	return term.PrintTableWithin(std.Out, term.NewPalette(std.Out, std.Env), term.Width(std.Out), []term.Column{
		{Title: "NAME"},
		{Title: "ORIGIN"},
		{Title: "ACCOUNT"},
		{Title: "HUBS"},
		{Title: "EXPIRES"},
		{Title: "LAST USED"},
		{Title: "CAPABILITIES", DropOrder: 3},
		{Title: "TOPICS", DropOrder: 1},
		{Title: "NETWORKS", DropOrder: 2},
	}, rows)
}

// formatTime formats a time as RFC 3339, or returns "" if it is zero.
func formatTime(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339)
}
