package adminserver

import (
	"context"
	"net/http"
	"strings"
	"time"

	"github.com/hubrelay/hubrelay/internal/adminapi"
	"github.com/hubrelay/hubrelay/internal/durations"
	"github.com/hubrelay/hubrelay/relay"
)

// Keys manages API keys. It may be used concurrently.
type Keys interface {
	// List returns the keys of the configuration and the stored ones, sorted by name.
	List(ctx context.Context) ([]adminapi.Key, error)
	// Create stores a key and returns its secret.
	Create(ctx context.Context, name string, spec adminapi.KeySpec) (adminapi.CreatedKey, error)
	// Rotate gives a stored key a new secret and returns it. The old one stays valid for overlap.
	Rotate(ctx context.Context, name string, overlap time.Duration) (adminapi.CreatedKey, error)
	// Revoke removes a stored key.
	Revoke(ctx context.Context, name string) error
}

func (h *apiHandler) handleKeys(k Keys) {
	handleOperation(h, adminapi.ListKeys(), withComponent(k, listKeys))
	handleOperation(h, adminapi.CreateKey(), withComponent(k, createKey))
	handleOperation(h, adminapi.RotateKey(), withComponent(k, rotateKey))
	handleOperation(h, adminapi.RevokeKey(), withComponent(k, revokeKey))
}

func listKeys(k Keys, r *http.Request, request adminapi.PageRequest) (adminapi.Page[adminapi.Key], error) {
	list, err := k.List(r.Context())
	return adminapi.SelectPage(list, request, func(k adminapi.Key) string { return k.Name }, strings.Compare), err
}

func createKey(k Keys, r *http.Request, spec adminapi.KeySpec) (adminapi.CreatedKey, error) {
	return k.Create(r.Context(), r.PathValue("name"), spec)
}

func rotateKey(k Keys, r *http.Request, request adminapi.RotateKeyRequest) (adminapi.CreatedKey, error) {
	var overlap time.Duration
	if request.Overlap != "" {
		var err error
		if overlap, err = durations.Parse(request.Overlap); err != nil {
			return adminapi.CreatedKey{}, relay.NewError(relay.CodeInvalidArgument, "overlap is not a duration such as 24h")
		}
	}
	return k.Rotate(r.Context(), r.PathValue("name"), overlap)
}

func revokeKey(k Keys, r *http.Request, _ adminapi.Empty) (adminapi.RevokedKey, error) {
	name := r.PathValue("name")
	return adminapi.RevokedKey{Name: name}, k.Revoke(r.Context(), name)
}

// Access explains what keys and other credentials allow. It may be used concurrently. An error is a *relay.Error, or means
// that Redis is unreachable.
type Access interface {
	CheckKey(name string, request adminapi.CheckKeyRequest) (adminapi.KeyAccess, error)
	ExplainStream(ctx context.Context, request adminapi.ExplainStreamRequest) (adminapi.StreamExplanation, error)
}

func checkKey(a Access, r *http.Request, request adminapi.CheckKeyRequest) (adminapi.KeyAccess, error) {
	return a.CheckKey(r.PathValue("name"), request)
}

func explainStream(a Access, r *http.Request, request adminapi.ExplainStreamRequest) (adminapi.StreamExplanation, error) {
	e, err := a.ExplainStream(r.Context(), request)
	if request.Key != "" && e.Key != "" { // another text may be a secret
		*auditDetail(r) = "key " + e.Key
	}
	return e, err
}
