package adminserver

import (
	"context"
	"net/http"
	"time"

	"github.com/hubrelay/hubrelay/internal/adminapi"
	"github.com/hubrelay/hubrelay/internal/durations"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/auth/keystore"
)

// Keys manages API keys. It may be used concurrently.
type Keys interface {
	// List returns the keys of the configuration, then the stored ones.
	List(ctx context.Context) ([]Key, error)
	// Create stores a key and returns its secret.
	Create(ctx context.Context, name string, spec keystore.Spec) (secret string, err error)
	// Rotate gives a stored key a new secret and returns it. The old one stays valid for overlap.
	Rotate(ctx context.Context, name string, overlap time.Duration) (secret string, rotated keystore.Key, err error)
	// Revoke removes a stored key.
	Revoke(ctx context.Context, name string) error
}

// The sources of keys.
const (
	KeySourceConfiguration = "configuration"
	KeySourceStored        = "stored"
)

// Key is an API key without its secret.
type Key struct {
	Source string `json:"source"`
	keystore.Key
	// LastUsed is accurate to about a minute. It is zero for a key that was never used.
	LastUsed time.Time `json:"last_used_at,omitzero"`
}

// createdKey is the response to a request that created a secret. It is shown only once.
type createdKey struct {
	Name   string `json:"name"`
	Secret string `json:"key"`
	// PreviousExpires is the time at which the old secret expires.
	PreviousExpires time.Time `json:"previous_expires,omitzero"`
}

func (o *apiHandler) handleKeys(pattern string, open func() Keys) {
	if open == nil {
		return
	}
	handle := func(path string, op func(k Keys, r *http.Request) (any, error), methods ...string) {
		o.handle(pattern+path, maxRequest, adminapi.RoleAdmin, func(r *http.Request) (int, any, error) {
			k := open()
			if k == nil {
				return 0, nil, errStarting()
			}
			data, err := op(k, r)
			return http.StatusOK, data, err
		}, methods...)
	}
	handle("", func(k Keys, r *http.Request) (any, error) { return k.List(r.Context()) },
		http.MethodGet, http.MethodHead)
	handle("/{name}/create", createKey, http.MethodPost)
	handle("/{name}/rotate", rotateKey, http.MethodPost)
	handle("/{name}/revoke", revokeKey, http.MethodPost)
}

func createKey(k Keys, r *http.Request) (any, error) {
	var spec keystore.Spec
	if err := decodeBody(r, &spec); err != nil {
		return nil, err
	}
	name := r.PathValue("name")
	secret, err := k.Create(r.Context(), name, spec)
	return createdKey{Name: name, Secret: secret}, err
}

func rotateKey(k Keys, r *http.Request) (any, error) {
	var request struct {
		Overlap string `json:"overlap"`
	}
	if err := decodeBody(r, &request); err != nil {
		return nil, err
	}
	var overlap time.Duration
	if request.Overlap != "" {
		var err error
		if overlap, err = durations.Parse(request.Overlap); err != nil {
			return nil, relay.NewError(relay.CodeInvalidArgument, "overlap is not a duration such as 24h")
		}
	}
	name := r.PathValue("name")
	secret, rotated, err := k.Rotate(r.Context(), name, overlap)
	return createdKey{Name: name, Secret: secret, PreviousExpires: rotated.PreviousExpires}, err
}

func revokeKey(k Keys, r *http.Request) (any, error) {
	name := r.PathValue("name")
	return map[string]string{"name": name}, k.Revoke(r.Context(), name)
}
