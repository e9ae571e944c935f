package adminserver

import (
	"context"
	"net/http"

	"github.com/hubrelay/hubrelay/internal/adminapi"
)

// Status describes the relay. Its method may be called concurrently and honors ctx. An error means that Redis is
// unreachable.
type Status interface {
	Show(ctx context.Context) (adminapi.Status, error)
}

func showStatus(s Status, r *http.Request, _ adminapi.Empty) (adminapi.Status, error) {
	return s.Show(r.Context())
}
