package adminserver

import (
	"context"
	"net/http"

	"github.com/hubrelay/hubrelay/internal/adminapi"
)

// Sources lists the upstreams. Its method may be called concurrently and honors ctx. An error means that Redis is
// unreachable.
type Sources interface {
	// List returns the configured sources sorted by name.
	List(ctx context.Context) ([]adminapi.Source, error)
}

func listSources(s Sources, r *http.Request, _ adminapi.Empty) ([]adminapi.Source, error) {
	return s.List(r.Context())
}
