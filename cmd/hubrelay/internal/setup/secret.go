package setup

import (
	"crypto/rand"
	"encoding/base64"
)

// NewWebhookSecret returns a secret from 256 random bits in the format of Standard Webhooks 1.0.
func NewWebhookSecret() string {
	random := make([]byte, 32)
	_, _ = rand.Read(random) // never returns an error
	return "whsec_" + base64.StdEncoding.EncodeToString(random)
}
