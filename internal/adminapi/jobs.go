package adminapi

import "github.com/hubrelay/hubrelay/relay"

// Job is a migration job with its request.
type Job struct {
	relay.Job
	AccountID           string `json:"account_id"`
	Cluster             string `json:"cluster"`
	ContainerID         string `json:"container_id"`
	InstanceID          string `json:"instance_id"`
	SourceServerID      string `json:"source_server_id"`
	DestinationServerID string `json:"destination_server_id"`
	CopyVolumes         bool   `json:"copy_volumes"`
	// RequestedBy is the name of the API key of the request, or the operator, such as "admin alice".
	RequestedBy string `json:"requested_by"`
	// Canceled is set if an operator has canceled the job. While the job is running, the driver rolls it back.
	Canceled bool `json:"canceled"`
}

// ListJobsRequest selects jobs. Members that are empty select all.
type ListJobsRequest struct {
	HubID       string `json:"hub_id,omitempty"`
	ContainerID string `json:"container_id,omitempty"`
	InstanceID  string `json:"instance_id,omitempty"`
	// States are new, queued, scheduled, running, completed, error and expired.
	States []string `json:"states,omitempty"`
	PageRequest
}

// CreateJobRequest is a request to migrate an instance.
type CreateJobRequest struct {
	HubID       string `json:"hub_id"`
	ContainerID string `json:"container_id"`
	InstanceID  string `json:"instance_id"`
	// DestinationServerID names a server of the same cluster.
	DestinationServerID string `json:"destination_server_id"`
	// CopyVolumes copies the volumes of a stateful container.
	CopyVolumes bool `json:"copy_volumes,omitempty"`
}

// ListJobs lists the jobs of all hubs, the newest first. The relay keeps jobs for 30 days after their end, at most 100 of an
// instance, and lists the newest 1,000 of each partition.
func ListJobs() Operation[ListJobsRequest, Page[Job]] {
	return viewerOperation[ListJobsRequest, Page[Job]]("jobs.list", "/api/jobs", "List migration jobs, the newest first")
}

// ShowJob shows a job with its steps.
func ShowJob() Operation[Empty, Job] {
	return viewerOperation[Empty, Job]("jobs.show", "/api/jobs/{id}", "Show a migration job with its steps")
}

// CreateJob migrates an instance, as POST …/tasks of the public API does.
func CreateJob() Operation[CreateJobRequest, Job] {
	return operatorOperation[CreateJobRequest, Job]("jobs.create", "/api/jobs", "Migrate an instance to another server")
}

// CancelJob cancels a job. One that waits ends with the state error. The driver rolls a running one back, or completes it if it
// can no longer go back. The response is the job right after the request.
func CancelJob() Operation[Empty, Job] {
	return operatorOperation[Empty, Job]("jobs.cancel", "/api/jobs/{id}/cancel", "Cancel a migration job, which rolls back a running one")
}
