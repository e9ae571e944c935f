package setup

import (
	"crypto/rand"
	"encoding/base64"
)

// NewWebhookSecret makes a secret as Standard Webhooks 1.0 writes it, from 256 random bits.
func NewWebhookSecret() string {
	random := make([]byte, 32)
	_, _ = rand.Read(random) // never fails, see crypto/rand
	return "whsec_" + base64.StdEncoding.EncodeToString(random)
}
