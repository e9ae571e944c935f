package adminserver

import (
	"context"
	"net/http"
	"strings"

	"github.com/hubrelay/hubrelay/internal/adminapi"
)

// Sources lists the upstreams. Its method may be called concurrently and honors ctx. An error means that Redis is
// unreachable.
type Sources interface {
	// List returns the configured sources sorted by name.
	List(ctx context.Context) ([]adminapi.Source, error)
}

func listSources(s Sources, r *http.Request, request adminapi.PageRequest) (adminapi.Page[adminapi.Source], error) {
	list, err := s.List(r.Context())
	return adminapi.SelectPage(list, request, func(s adminapi.Source) string { return s.Name }, strings.Compare), err
}
