package adminapi

import "time"

// The origins of keys.
const (
	KeyOriginConfiguration = "configuration"
	KeyOriginStored        = "stored" // created by [CreateKey]
)

// KeySpec describes the permissions of a key.
type KeySpec struct {
	// AccountID is the account whose events the key sees, besides events without an account, or "*".
	AccountID string `json:"account_id"`
	// Hubs are the hubs that the key may access, or "*".
	Hubs         []string `json:"hubs"`
	Capabilities []string `json:"capabilities,omitempty"`
	// Topics are patterns of the topics that the key may publish. Empty means all.
	Topics []string `json:"topics,omitempty"`
	// Networks are the networks from which the key may be used. Empty means all.
	Networks []string `json:"networks,omitempty"`
	// ExpiresAt is omitted if the key does not expire.
	ExpiresAt time.Time `json:"expires_at,omitzero"`
}

// Key is an API key without its secret.
type Key struct {
	Name string `json:"name"`
	// Origin is configuration, or stored for a key that keys.create has created.
	Origin string `json:"origin"`
	KeySpec
	CreatedAt time.Time `json:"created_at,omitzero"`
	RotatedAt time.Time `json:"rotated_at,omitzero"`
	// PreviousExpiresAt is the time until which the secret before the last rotation is valid.
	PreviousExpiresAt time.Time `json:"previous_expires_at,omitzero"`
	// LastUsedAt is accurate to about a minute. It is omitted for a key that was never used.
	LastUsedAt time.Time `json:"last_used_at,omitzero"`
}

// CreatedKey contains a new secret, which is shown only once.
type CreatedKey struct {
	Name string `json:"name"`
	Key  string `json:"key"`
	// PreviousExpiresAt is the time until which the secret before a rotation is valid.
	PreviousExpiresAt time.Time `json:"previous_expires_at,omitzero"`
}

// RotateKeyRequest is the request of [RotateKey].
type RotateKeyRequest struct {
	// Overlap is the time for which the old secret stays valid, such as 24h. Empty means that it ends immediately.
	Overlap string `json:"overlap,omitempty"`
}

// RevokedKey is the result of [RevokeKey].
type RevokedKey struct {
	Name string `json:"name"`
}

// The actions of [CheckKey].
const (
	ActionPublish = "publish"
	ActionRead    = "read"
)

// CheckKeyRequest describes what a client wants to do. Only AccountID may be empty.
type CheckKeyRequest struct {
	// Action is publish or read.
	Action string `json:"action"`
	Topic  string `json:"topic"`
	HubID  string `json:"hub_id"`
	// AccountID is the account of the event. Empty means an event without an account, or to publish, the account of the key.
	AccountID string `json:"account_id,omitempty"`
}

// KeyAccess is whether a key may do something.
type KeyAccess struct {
	Allowed bool `json:"allowed"`
	// Reason is a sentence.
	Reason string `json:"reason"`
}

// CheckKey reports whether a key may publish or read a topic.
func CheckKey() Operation[CheckKeyRequest, KeyAccess] {
	return viewerOperation[CheckKeyRequest, KeyAccess]("keys.check", "/api/keys/{name}/access",
		"Check whether an API key may publish or read a topic")
}

// ListKeys lists the keys of the configuration and the stored ones, sorted by name.
func ListKeys() Operation[PageRequest, Page[Key]] {
	return viewerOperation[PageRequest, Page[Key]]("keys.list", "/api/keys", "List the API keys without their secrets")
}

// CreateKey stores a key. It is valid on all nodes within a second.
func CreateKey() Operation[KeySpec, CreatedKey] {
	return keyOperation[KeySpec, CreatedKey]("keys.create", "/api/keys/{name}/create", "Create an API key")
}

// RotateKey gives a stored key a new secret.
func RotateKey() Operation[RotateKeyRequest, CreatedKey] {
	return keyOperation[RotateKeyRequest, CreatedKey]("keys.rotate", "/api/keys/{name}/rotate",
		"Replace the secret of a stored API key")
}

// RevokeKey removes a stored key. Within a second, its tokens and streams end on all nodes.
func RevokeKey() Operation[Empty, RevokedKey] {
	return keyOperation[Empty, RevokedKey]("keys.revoke", "/api/keys/{name}/revoke", "Revoke a stored API key")
}
