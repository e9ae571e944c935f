package auth

import (
	"encoding/hex"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/hubrelay/hubrelay/internal/apikey"
	"github.com/hubrelay/hubrelay/relay"
)

// The capabilities that a key may have in addition to reading its hubs.
const (
	// CapabilityPublish lets a key publish notifications.
	CapabilityPublish = "notifications-publish"
	// CapabilityMigrate lets a key migrate instances. The name is defined in docs/specification.md.
	CapabilityMigrate = "containers-instances-migrate"
)

// Wildcard means every hub in Key.Hubs and every account in Key.AccountID.
const Wildcard = "*"

// MaxHubID is the maximum length of a hub ID in X-Hub-Id, in bytes.
const MaxHubID = 256

// MaxAccountID is the maximum length of an account in bytes, as in events.
const MaxAccountID = 256

// IsShortText reports whether text has at most maxBytes bytes and no control characters. Another system chooses the name and the
// account of an external key, which stay in memory and appear in logs.
func IsShortText(text string, maxBytes int) bool {
	return len(text) <= maxBytes && !strings.ContainsFunc(text, unicode.IsControl)
}

// Key is one API key. A Key in a [Keyring] is shared between goroutines and must not be changed.
type Key struct {
	// Name identifies the key in logs, metrics and tokens. It is unique in a Keyring.
	Name string
	// AccountID is the account that the key belongs to. It is [Wildcard] for a key of the platform, and empty for a key
	// that sees only notifications without an account.
	AccountID string
	// Hash is the SHA-256 of the secret. The secret itself is not stored.
	Hash apikey.Hash
	// Hubs are the hubs that the key may read. [Wildcard] means all hubs. An empty list means none.
	Hubs []string
	// Capabilities are the additional permissions of the key.
	Capabilities []string
	// Expires is the time at which the key stops working. Zero means never.
	Expires time.Time
	// SAN is the subject alternative name of the client certificates that authenticate as this key: a DNS name, an
	// email address or a URI. Such a key has no secret. Its Hash is [HashOfSAN].
	SAN string
	// Topics are the topics that the key may publish. The zero value means all.
	Topics relay.Patterns
	// Networks are the networks from which the key may be used. An empty list means all. Tokens of the key are not
	// restricted.
	Networks []netip.Prefix
	// Superseded marks the old secret of a rotated key. It has the name of the new one and an expiry.
	Superseded bool
	// LastUsed is the Unix time in seconds at which the key was last used, or 0. Nil is not updated.
	LastUsed *atomic.Int64
	// External marks the bearer of a credential of another system. It is in no [Keyring], and has an expiry.
	External bool
	// VerifiedAt is the time at which the other system decided. It is zero if the credential itself is the proof.
	VerifiedAt time.Time
	// CertificateExpires is the time at which the certificate of the client expires. Expires is not later. It is zero for other
	// credentials, and in a [Keyring].
	CertificateExpires time.Time

	grantID string // set in a Keyring, so the grants of thousands of streams share it
}

// HashOfSAN returns the Hash of a key with a SAN. No secret has this hash, because headers contain no NUL.
func HashOfSAN(san string) apikey.Hash { return apikey.HashOf("\x00san\x00" + san) }

func (k *Key) allowsAddress(addr netip.Addr) bool {
	return len(k.Networks) == 0 || slices.ContainsFunc(k.Networks, func(n netip.Prefix) bool {
		return n.Contains(addr.Unmap())
	})
}

func (k *Key) markUsed(now time.Time) {
	if k.LastUsed != nil && k.LastUsed.Load() != now.Unix() {
		k.LastUsed.Store(now.Unix())
	}
}

// Owner returns the name under which memory and storage are limited: the account, or the key if it has none. Credentials of
// another system without an account share one name, because their issuer can issue any number of them.
func (k *Key) Owner() string { return ownerOf(k.AccountID, k.Name, k.External) }

func ownerOf(account, keyName string, isExternal bool) string {
	switch {
	case account != "" && account != Wildcard:
		return "account " + account
	case isExternal && account == "":
		return "credentials without an account"
	}
	return "key " + keyName
}

// CanReadHub reports whether the key may read hub.
func (k *Key) CanReadHub(hub string) bool { return includesHub(k.Hubs, hub) }

func includesHub(hubs []string, hub string) bool {
	for _, h := range hubs {
		if h == Wildcard || h == hub {
			return true
		}
	}
	return false
}

// HasCapability reports whether the key has the capability.
func (k *Key) HasCapability(capability string) bool {
	return slices.Contains(k.Capabilities, capability)
}

// RequireCapability returns nil if the key has the capability, and 403.permissions with extra.capability otherwise.
func (k *Key) RequireCapability(capability string) *relay.Error {
	if k.HasCapability(capability) {
		return nil
	}
	return relay.NewError(relay.CodePermissions,
		"the key "+strconv.Quote(k.Name)+" lacks the capability "+capability+": use another key, or add it to the key",
	).WithExtra("capability", capability)
}

// RequireHub returns nil if the key may read hub, and 403.wrong-hub otherwise.
func (k *Key) RequireHub(hub string) *relay.Error {
	if k.CanReadHub(hub) {
		return nil
	}
	return relay.NewError(relay.CodeWrongHub,
		"the key "+strconv.Quote(k.Name)+" has no access to the hub "+strconv.Quote(hub)+": use one of its hubs, or another key")
}

// Expired reports whether the key has expired at now.
func (k *Key) Expired(now time.Time) bool { return !k.Expires.IsZero() && !now.Before(k.Expires) }

// Grant returns the grant for a token of this key: for the stream of hub, or for the account stream if hub is
// empty. It does not check that the key may read hub. See RequireHub. The grant for a hub does not contain the other hubs of the
// key, which may be thousands.
func (k *Key) Grant(hub string) Grant {
	return Grant{
		KeyName: k.Name, KeyID: k.id(), Hub: hub, Account: k.AccountID, Hubs: k.HubsFor(hub), Expires: k.Expires,
		External: k.External, VerifiedAt: k.VerifiedAt, CertificateExpires: k.CertificateExpires,
	}
}

// HubsFor returns the hubs of a request for a hub: this hub if the key may read it, otherwise none. Empty returns all hubs of the key.
func (k *Key) HubsFor(hub string) []string {
	switch {
	case hub == "":
		return k.Hubs
	case k.CanReadHub(hub):
		return []string{hub}
	}
	return nil
}

// MemoryBytes returns about the memory of the key in bytes.
func (k *Key) MemoryBytes() int {
	const listEntry = 24 // without the text; allocators round up
	size := 512 + len(k.Name) + len(k.AccountID)
	for _, hub := range k.Hubs {
		size += listEntry + len(hub)
	}
	for _, capability := range k.Capabilities {
		size += listEntry + len(capability)
	}
	return size
}

// limitToCertificate returns a copy of the key that expires with the certificate of the client. A zero time sets no limit.
func (k *Key) limitToCertificate(expires time.Time) *Key {
	if expires.IsZero() {
		return k
	}
	limited := *k
	limited.CertificateExpires = expires
	if limited.Expires.IsZero() || expires.Before(limited.Expires) {
		limited.Expires = expires
	}
	return &limited
}

// id distinguishes a key from a later key with the same name. Half of the hash is sufficient, and useless for guessing
// the secret.
func (k *Key) id() string {
	if k.grantID != "" {
		return k.grantID
	}
	return hex.EncodeToString(k.Hash[:len(k.Hash)/2])
}

// CheckHubID returns nil for a valid hub ID in X-Hub-Id: 1 to [MaxHubID] bytes of UTF-8 without control characters.
// Otherwise it returns 422.missing-argument for an empty ID or 422.invalid-argument.
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
