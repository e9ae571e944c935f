package adminserver

import (
	"context"
	"net/http"

	"github.com/hubrelay/hubrelay/internal/adminapi"
)

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
