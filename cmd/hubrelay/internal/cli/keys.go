package cli

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/command"
	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/setup"
	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/term"
	"github.com/hubrelay/hubrelay/internal/adminapi"
	"github.com/hubrelay/hubrelay/internal/apikey"
)

func newKeysNew(std term.Streams) *cobra.Command {
	var (
		name, role         string
		admin, webhook, ed bool
		output             command.Output
	)
	cmd := &cobra.Command{
		Use:   "new",
		Short: "Print a new API key, admin token or webhook secret for the configuration",
		Long: `Creates an API key from 256 random bits and prints it once, with the lines for the configuration. They
contain only its SHA-256. To create a key in a running relay, use "keys create".

With --admin it creates a token for the admin listener instead. With --webhook it creates a secret that signs
webhooks. With --webhook --ed25519 it creates a key pair: the private key signs and is a secret for the configuration;
the public key is for the destination and only verifies.`,
		Args: command.ExactNamedArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case admin && (webhook || ed):
				return command.NewUsageError(cmd, errors.New("--admin creates a token for the admin listener: use it without "+
					"--webhook"))
			case !admin && cmd.Flags().Changed("role"):
				return command.NewUsageError(cmd, errors.New("--role is for admin tokens: use --admin too"))
			case !slices.Contains(adminRoles(), role):
				return command.NewUsageError(cmd, fmt.Errorf("unknown role %q: choose one of %s", role,
					strings.Join(adminRoles(), ", ")))
			case ed && !webhook:
				return command.NewUsageError(cmd, errors.New("--ed25519 creates keys that sign webhooks: use --webhook too"))
			case webhook && cmd.Flags().Changed("name"):
				return command.NewUsageError(cmd, errors.New("--name is for API keys: webhook secrets have no name"))
			}
			if ed {
				return printWebhookPair(std, &output)
			}
			if webhook {
				return printWebhookSecret(std, &output)
			}
			if admin {
				return printAdminToken(std, &output, name, role)
			}
			return printKey(std, &output, name)
		},
	}
	cmd.Flags().StringVar(&name, "name", "ops", "name of the key or token in the printed configuration")
	cmd.Flags().BoolVar(&admin, "admin", false, "create a token for the admin listener")
	cmd.Flags().StringVar(&role, "role", string(adminapi.RoleAdmin), "with --admin, role of the token: "+
		strings.Join(adminRoles(), ", "))
	cmd.Flags().BoolVar(&webhook, "webhook", false, "create a webhook secret")
	cmd.Flags().BoolVar(&ed, "ed25519", false, "with --webhook, create a private and a public key")
	output.Register(cmd.Flags())
	return cmd
}

func printKey(std term.Streams, o *command.Output, name string) error {
	key := apikey.New()
	hash := apikey.FormatHash(apikey.HashOf(key))
	if !o.IsTable() {
		return o.Print(std.Out, map[string]string{"name": name, "key": key, "key_sha256": hash})
	}
	_, err := fmt.Fprintf(std.Out, `%s

Add the hash to the configuration. The key is not shown again:

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

func printAdminToken(std term.Streams, o *command.Output, name, role string) error {
	token := apikey.NewAdminToken()
	hash := apikey.FormatHash(apikey.HashOf(token))
	if !o.IsTable() {
		return o.Print(std.Out, map[string]string{
			"name": name, "role": role, "token": token,
			"token_sha256": hash,
		})
	}
	_, err := fmt.Fprintf(std.Out, `%s

Add the hash to the configuration. The token is not shown again. Commands read it from HUBRELAY_ADMIN_TOKEN:

admin:
  listen: 127.0.0.1:9091
  tokens:
    - {name: %q, role: %s, token_sha256: %s}
`, token, name, role, hash)
	return err
}

func printWebhookSecret(std term.Streams, o *command.Output) error {
	secret := setup.NewWebhookSecret()
	if !o.IsTable() {
		return o.Print(std.Out, map[string]string{"secret": secret})
	}
	_, err := fmt.Fprintln(std.Out, secret)
	return err
}

// printWebhookPair creates an ed25519 key pair in the format of Standard Webhooks 1.0 and prints the private key
// first.
func printWebhookPair(std term.Streams, o *command.Output) error {
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return fmt.Errorf("create key pair: %w", err)
	}
	secret := "whsk_" + base64.StdEncoding.EncodeToString(private)
	verifies := "whpk_" + base64.StdEncoding.EncodeToString(public)
	if !o.IsTable() {
		return o.Print(std.Out, map[string]string{"secret": secret, "public": verifies})
	}
	_, err = fmt.Fprintf(std.Out, `%s
%s

The first key signs: add it to the secrets of the sink, and keep it secret.
The second key verifies: give it to the destination.
`, secret, verifies)
	return err
}
