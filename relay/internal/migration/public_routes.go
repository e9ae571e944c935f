package migration

import (
	"context"
	"net/http"

	"github.com/hubrelay/hubrelay/relay/internal/audit"
	"github.com/hubrelay/hubrelay/relay/internal/auth"
	"github.com/hubrelay/hubrelay/relay/internal/module"
)

// PublicRoutes returns the routes that list, start and show migrations.
func (m *Module) PublicRoutes() []module.PublicRoute {
	const (
		tasks   = "/v1/containers/{container_id}/instances/{instance_id}/tasks"
		readHub = "the hub to look in"
	)
	return []module.PublicRoute{
		{
			Pattern: tasks, Method: http.MethodGet, HubPurpose: readHub, Status: http.StatusOK,
			CheckReady: m.checkReady,
			Handle: func(ctx context.Context, r module.PublicRequest) (any, error) {
				return m.service.Jobs(ctx, r.Caller, r.Params[0], r.Params[1])
			},
		},
		{
			Pattern: tasks, Method: http.MethodPost, Capability: auth.CapabilityMigrate,
			AuditAction: audit.ActionCreateJob, HubPurpose: "the hub of the instance", Status: http.StatusAccepted,
			MaxBody: maxRequest, CheckReady: m.checkReady,
			Handle: func(ctx context.Context, r module.PublicRequest) (any, error) {
				return m.service.Migrate(ctx, Request{
					Caller: r.Caller, Container: r.Params[0], Instance: r.Params[1],
					ContentType: r.ContentType, IdempotencyKey: r.IdempotencyKey, Body: r.Body,
				})
			},
		},
		{
			Pattern: "/v1/jobs/{job_id}", Method: http.MethodGet, HubPurpose: readHub, Status: http.StatusOK,
			CheckReady: m.checkReady,
			Handle: func(ctx context.Context, r module.PublicRequest) (any, error) {
				return m.service.Job(ctx, r.Caller, r.Params[0])
			},
		},
	}
}
