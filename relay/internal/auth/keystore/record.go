package keystore

import (
	"encoding/hex"
	"fmt"
	"time"

	"github.com/hubrelay/hubrelay/internal/apikey"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/auth"
	"github.com/hubrelay/hubrelay/relay/internal/clientaddr"
)

// Spec describes a key. [auth.Key] describes the fields.
type Spec struct {
	AccountID    string    `json:"account_id"`
	Hubs         []string  `json:"hubs"`
	Capabilities []string  `json:"capabilities,omitempty"`
	Topics       []string  `json:"topics,omitempty"`
	Networks     []string  `json:"networks,omitempty"`
	Expires      time.Time `json:"expires,omitzero"`
}

// Key is a stored key.
type Key struct {
	Name string `json:"name"`
	Spec
	CreatedAt time.Time `json:"created_at,omitzero"`
	// RotatedAt is the time of the last rotation, or zero.
	RotatedAt time.Time `json:"rotated_at,omitzero"`
	// PreviousExpires is the time at which the secret before the last rotation expires, or zero.
	PreviousExpires time.Time `json:"previous_expires,omitzero"`
}

// record is the JSON of a key in Redis.
type record struct {
	Key
	SHA256         string `json:"sha256"`
	PreviousSHA256 string `json:"previous_sha256,omitempty"`
}

// authKeys returns the key with its current secret, and with the previous one if that is set.
func (r *record) authKeys() ([]auth.Key, error) {
	hash, err := parseHash(r.SHA256)
	if err != nil {
		return nil, err
	}
	topics, err := relay.ParsePatterns(r.Topics)
	if err != nil {
		return nil, err
	}
	networks, err := clientaddr.ParseNetworks(r.Networks)
	if err != nil {
		return nil, err
	}
	current := auth.Key{
		Name: r.Name, AccountID: r.AccountID, Hash: hash, Hubs: r.Hubs, Capabilities: r.Capabilities, Topics: topics,
		Networks: networks, Expires: r.Expires,
	}
	if r.PreviousSHA256 == "" {
		return []auth.Key{current}, nil
	}
	previous := current
	previous.Superseded, previous.Expires = true, r.PreviousExpires
	if previous.Hash, err = parseHash(r.PreviousSHA256); err != nil {
		return nil, err
	}
	return []auth.Key{current, previous}, nil
}

func parseHash(text string) (h apikey.Hash, err error) {
	b, err := hex.DecodeString(text)
	if err != nil || len(b) != len(h) {
		return h, fmt.Errorf("%q is not a SHA-256", relay.Truncate(text, 64))
	}
	return apikey.Hash(b), nil
}
