package adminserver

import (
	"context"
	"net/http"
	"strings"

	"github.com/hubrelay/hubrelay/internal/adminapi"
)

// Status describes the relay. Its methods may be called concurrently. Those with a context honor it, and their error means
// that Redis is unreachable.
type Status interface {
	ShowStatus(ctx context.Context) (adminapi.Status, error)
	ListNodes(ctx context.Context, r adminapi.PageRequest) (adminapi.Page[adminapi.Node], error)
	ShowConfig() adminapi.Config
	// ShowConfigVersion returns a *[relay.Error] for a version that is not kept.
	ShowConfigVersion(number string) (adminapi.ConfigText, error)
}

func showStatus(s Status, r *http.Request, _ adminapi.Empty) (adminapi.Status, error) {
	return s.ShowStatus(r.Context())
}

func listNodes(s Status, r *http.Request, request adminapi.PageRequest) (adminapi.Page[adminapi.Node], error) {
	return s.ListNodes(r.Context(), request)
}

func showConfig(s Status, _ *http.Request, _ adminapi.Empty) (adminapi.Config, error) {
	return s.ShowConfig(), nil
}

func showConfigVersion(s Status, r *http.Request, _ adminapi.Empty) (adminapi.ConfigText, error) {
	return s.ShowConfigVersion(r.PathValue("number"))
}

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
