package adminserver

import (
	"context"
	"net/http"

	"github.com/hubrelay/hubrelay/internal/adminapi"
)

// Jobs lists, creates and cancels migration jobs of all hubs. Its methods may be called concurrently and honor ctx. Their errors are
// *[relay.Error], or mean that Redis is unreachable.
type Jobs interface {
	ListJobs(ctx context.Context, r adminapi.ListJobsRequest) (adminapi.Page[adminapi.Job], error)
	ShowJob(ctx context.Context, id string) (adminapi.Job, error)
	// CreateJob migrates an instance. actor is recorded in the job.
	CreateJob(ctx context.Context, actor string, r adminapi.CreateJobRequest) (adminapi.Job, error)
	// CancelJob returns the job right after the request. A running job ends later.
	CancelJob(ctx context.Context, id string) (adminapi.Job, error)
}

func listJobs(j Jobs, r *http.Request, request adminapi.ListJobsRequest) (adminapi.Page[adminapi.Job], error) {
	return j.ListJobs(r.Context(), request)
}

func showJob(j Jobs, r *http.Request, _ adminapi.Empty) (adminapi.Job, error) {
	return j.ShowJob(r.Context(), r.PathValue("id"))
}

func createJob(j Jobs, r *http.Request, request adminapi.CreateJobRequest) (adminapi.Job, error) {
	job, err := j.CreateJob(r.Context(), actorOf(r), request)
	detail := request.ContainerID + "/" + request.InstanceID + " to " + request.DestinationServerID
	if err == nil {
		detail += ", job " + job.ID
	}
	*auditDetail(r) = detail
	return job, err
}

func cancelJob(j Jobs, r *http.Request, _ adminapi.Empty) (adminapi.Job, error) {
	return j.CancelJob(r.Context(), r.PathValue("id"))
}
