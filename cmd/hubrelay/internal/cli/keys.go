package cli

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/setup"
	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/term"
	"github.com/hubrelay/hubrelay/internal/adminapi"
	"github.com/hubrelay/hubrelay/internal/apikey"
	"github.com/spf13/cobra"
)

func newKeys(std term.Streams) *cobra.Command {
	return commandGroup("keys", "Make API keys and webhook secrets", newKeysNew(std))
}

func newKeysNew(std term.Streams) *cobra.Command {
	var (
		name, role         string
		admin, webhook, ed bool
		asJSON             bool
	)
	cmd := &cobra.Command{
		Use:   "new",
		Short: "Make a new API key, an admin token, or a secret that signs webhooks",
		Long: `Makes a new API key from 256 random bits and prints it once, with the lines for the configuration, which hold
only its SHA-256. With --admin it makes a token for the admin listener instead. With --webhook it makes a secret that signs webhooks instead; with --ed25519 too, a pair of keys: the
private one signs, and belongs into the configuration as a secret does; the public one is for the receiver, and only verifies.`,
		Args: WithUsageErrors(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case admin && (webhook || ed):
				return NewUsageError(cmd, errors.New("--admin makes a token for the admin listener: give it without "+
					"--webhook"))
			case !admin && cmd.Flags().Changed("role"):
				return NewUsageError(cmd, errors.New("--role is of an admin token: give --admin too"))
			case !slices.Contains(adminRoles(), role):
				return NewUsageError(cmd, fmt.Errorf("there is no role %q: choose one of %s", role,
					strings.Join(adminRoles(), ", ")))
			case ed && !webhook:
				return NewUsageError(cmd, errors.New("--ed25519 makes keys that sign webhooks: give --webhook too"))
			case webhook && cmd.Flags().Changed("name"):
				return NewUsageError(cmd, errors.New("--name is of an API key: what signs webhooks has none"))
			}
			if ed {
				return printWebhookPair(std, asJSON)
			}
			if webhook {
				return printWebhookSecret(std, asJSON)
			}
			if admin {
				return printAdminToken(std, name, role, asJSON)
			}
			return printKey(std, name, asJSON)
		},
	}
	cmd.Flags().StringVar(&name, "name", "ops", "name of the key or token in the printed configuration")
	cmd.Flags().BoolVar(&admin, "admin", false, "make a token for the admin listener")
	cmd.Flags().StringVar(&role, "role", string(adminapi.RoleAdmin), "with --admin, what the token may do: "+
		strings.Join(adminRoles(), ", "))
	cmd.Flags().BoolVar(&webhook, "webhook", false, "make a webhook secret")
	cmd.Flags().BoolVar(&ed, "ed25519", false, "with --webhook, make a private and a public key")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a JSON line")
	return cmd
}

func printKey(std term.Streams, name string, asJSON bool) error {
	key := apikey.New()
	hash := apikey.FormatHash(apikey.HashOf(key))
	if asJSON {
		return json.NewEncoder(std.Out).Encode(map[string]string{"name": name, "key": key, "key_sha256": hash})
	}
	_, err := fmt.Fprintf(std.Out, `%s

For the configuration; the key itself is shown only here:

auth:
  keys:
    - {name: %q, key_sha256: %s, account_id: "*", hubs: ["*"], capabilities: [notifications-publish]}
`, key, name, hash)
	return err
}

func adminRoles() []string {
	var names []string
	for _, role := range adminapi.Roles() {
		names = append(names, string(role))
	}
	return names
}

func printAdminToken(std term.Streams, name, role string, asJSON bool) error {
	token := apikey.NewAdminToken()
	hash := apikey.FormatHash(apikey.HashOf(token))
	if asJSON {
		return json.NewEncoder(std.Out).Encode(map[string]string{
			"name": name, "role": role, "token": token,
			"token_sha256": hash,
		})
	}
	_, err := fmt.Fprintf(std.Out, `%s

For the configuration; the token itself is shown only here. Commands read it from HUBRELAY_ADMIN_TOKEN:

admin:
  listen: 127.0.0.1:9091
  tokens:
    - {name: %q, role: %s, token_sha256: %s}
`, token, name, role, hash)
	return err
}

func printWebhookSecret(std term.Streams, asJSON bool) error {
	secret := setup.NewWebhookSecret()
	if asJSON {
		return json.NewEncoder(std.Out).Encode(map[string]string{"secret": secret})
	}
	_, err := fmt.Fprintln(std.Out, secret)
	return err
}

// printWebhookPair makes an ed25519 pair as Standard Webhooks 1.0 writes it, the private key followed by the public.
func printWebhookPair(std term.Streams, asJSON bool) error {
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return fmt.Errorf("make a pair of keys: %w", err)
	}
	secret := "whsk_" + base64.StdEncoding.EncodeToString(private)
	verifies := "whpk_" + base64.StdEncoding.EncodeToString(public)
	if asJSON {
		return json.NewEncoder(std.Out).Encode(map[string]string{"secret": secret, "public": verifies})
	}
	_, err = fmt.Fprintf(std.Out, `%s
%s

The first signs: give it as one of the sink's secrets, and to nobody. The second verifies: give it to the receiver.
`, secret, verifies)
	return err
}
