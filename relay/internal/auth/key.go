package auth

import (
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/hubrelay/hubrelay/internal/apikey"
	"github.com/hubrelay/hubrelay/relay"
)

// The capabilities that a key may hold beside reading its hubs.
const (
	// CapabilityPublish lets a key publish notifications.
	CapabilityPublish = "notifications-publish"
	// CapabilityMigrate lets a key migrate instances; the name is spec.md's.
	CapabilityMigrate = "containers-instances-migrate"
)

// Wildcard stands for every hub in Key.Hubs and for every account in Key.AccountID.
const Wildcard = "*"

// MaxHubID is the longest hub id in bytes that X-Hub-Id may carry.
const MaxHubID = 256

// Key is one API key. A Key in a [Keyring] is shared between goroutines: nobody may change it.
type Key struct {
	// Name is what logs, metrics and tokens call the key; unique in a Keyring.
	Name string
	// AccountID is the account that the key belongs to; [Wildcard] for a platform's key, empty for a key that sees only
	// notifications without an account.
	AccountID string
	// Hash is the SHA-256 of the secret. The secret itself is not kept.
	Hash apikey.Hash
	// Hubs are the hubs that the key opens; [Wildcard] means all, none means none.
	Hubs []string
	// Capabilities are what the key may do beside reading.
	Capabilities []string
	// Expires is when the key stops working; zero means never.
	Expires time.Time
}

// CanReadHub says whether the key may read hub.
func (k *Key) CanReadHub(hub string) bool { return hubsInclude(k.Hubs, hub) }

func hubsInclude(hubs []string, hub string) bool {
	for _, h := range hubs {
		if h == Wildcard || h == hub {
			return true
		}
	}
	return false
}

// HasCapability says whether the key holds the capability.
func (k *Key) HasCapability(capability string) bool {
	return slices.Contains(k.Capabilities, capability)
}

// RequireCapability returns nil where the key holds the capability, and 403.permissions with extra.capability where not.
func (k *Key) RequireCapability(capability string) *relay.Error {
	if k.HasCapability(capability) {
		return nil
	}
	return relay.NewError(relay.CodePermissions,
		"the key "+strconv.Quote(k.Name)+" lacks the capability "+capability).WithExtra("capability", capability)
}

// RequireHub returns nil where the key opens hub, and 403.wrong-hub where not.
func (k *Key) RequireHub(hub string) *relay.Error {
	if k.CanReadHub(hub) {
		return nil
	}
	return relay.NewError(relay.CodeWrongHub,
		"the key "+strconv.Quote(k.Name)+" does not open the hub "+strconv.Quote(hub))
}

// Expired says whether the key has stopped working at now.
func (k *Key) Expired(now time.Time) bool { return !k.Expires.IsZero() && !now.Before(k.Expires) }

// Grant returns what a token of this key lets its bearer see: the pipeline of hub, or with an empty hub the account
// pipeline. It does not check that the key opens hub; see RequireHub.
func (k *Key) Grant(hub string) Grant {
	return Grant{
		KeyName: k.Name, KeyID: k.id(), Hub: hub, Account: k.AccountID, Hubs: k.Hubs, Expires: k.Expires,
	}
}

// id tells a key from a later one of the same name. Half of the hash is enough for that and useless for guessing.
func (k *Key) id() string { return hex.EncodeToString(k.Hash[:len(k.Hash)/2]) }

// CheckHubID returns nil for a hub id that X-Hub-Id may carry: 1 to [MaxHubID] bytes of UTF-8 without control
// characters. Otherwise 422.missing-argument (empty) or 422.invalid-argument.
func CheckHubID(hub string) *relay.Error {
	switch {
	case hub == "":
		return relay.NewError(relay.CodeMissingArgument, "the header X-Hub-Id is empty")
	case len(hub) > MaxHubID:
		return relay.NewError(relay.CodeInvalidArgument,
			fmt.Sprintf("the header X-Hub-Id has %d bytes, at most %d are allowed", len(hub), MaxHubID))
	case !utf8.ValidString(hub):
		return relay.NewError(relay.CodeInvalidArgument, "the header X-Hub-Id is not valid UTF-8")
	}
	for _, r := range hub {
		if unicode.IsControl(r) {
			return relay.NewError(relay.CodeInvalidArgument, "the header X-Hub-Id contains a control character")
		}
	}
	return nil
}
