package main

import (
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/hubrelay/hubrelay/relay/auth"
)

func newKeys(std streams) *cobra.Command {
	return group("keys", "Make API keys and webhook secrets", newKeysNew(std))
}

func newKeysNew(std streams) *cobra.Command {
	var (
		name            string
		webhook, asJSON bool
	)
	cmd := &cobra.Command{
		Use:   "new",
		Short: "Make a new API key, or with --webhook a secret that signs webhooks",
		Long: `Makes a new API key from 256 random bits and prints it once, with the lines for the configuration, which hold
only its SHA-256. With --webhook it makes a secret that signs webhooks instead.`,
		Args: checked(cobra.NoArgs),
		RunE: func(*cobra.Command, []string) error {
			if webhook {
				return printWebhookSecret(std, asJSON)
			}
			return printKey(std, name, asJSON)
		},
	}
	cmd.Flags().StringVar(&name, "name", "ops", "name of the key in the printed configuration")
	cmd.Flags().BoolVar(&webhook, "webhook", false, "make a webhook secret")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a JSON line")
	return cmd
}

func printKey(std streams, name string, asJSON bool) error {
	key := auth.NewSecret()
	hash := auth.FormatHash(auth.HashSecret(key))
	if asJSON {
		return json.NewEncoder(std.out).Encode(map[string]string{"name": name, "key": key, "key_sha256": hash})
	}
	_, err := fmt.Fprintf(std.out, `%s

For the configuration; the key itself is shown only here:

auth:
  keys:
    - {name: %q, key_sha256: %s, account_id: "*", hubs: ["*"], capabilities: [notifications-publish]}
`, key, name, hash)
	return err
}

// newWebhookSecret makes a secret as Standard Webhooks 1.0 writes it, from 256 random bits.
func newWebhookSecret() string {
	random := make([]byte, 32)
	_, _ = rand.Read(random) // never fails, see crypto/rand
	return "whsec_" + base64.StdEncoding.EncodeToString(random)
}

func printWebhookSecret(std streams, asJSON bool) error {
	secret := newWebhookSecret()
	if asJSON {
		return json.NewEncoder(std.out).Encode(map[string]string{"secret": secret})
	}
	_, err := fmt.Fprintln(std.out, secret)
	return err
}
