package migration

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hubrelay/hubrelay/internal/adminapi"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/module"
)

const (
	// maxRecentJobs is the number of jobs of a partition that operators can list.
	maxRecentJobs = 1000
	// defaultJobPage and maxJobPage are numbers of jobs in a response.
	defaultJobPage, maxJobPage = 100, 500
	// jobsPerRead is the number of jobs in one request to Redis.
	jobsPerRead = 100
	// listJobsTime is the time after which a list returns the jobs that it has found.
	listJobsTime = 2 * time.Second
)

// AdminJobs returns the jobs of all hubs for operators. It implements [adminserver.Jobs].
func (m *Module) AdminJobs() *AdminJobs { return &AdminJobs{module: m} }

// AdminJobs lists, creates and cancels jobs for operators. It may be used concurrently when the module has started.
type AdminJobs struct{ module *Module }

func (a *AdminJobs) requireService() (*Service, error) {
	if a.module.driver == nil {
		return nil, relay.NewError(relay.CodeNotEnabled,
			"migrations are disabled, so there are no jobs; configure migration.driver and restart the relay")
	}
	return a.module.service, nil
}

// ListJobs returns a page of the selected jobs, the newest first. It can have fewer jobs than the limit although more follow,
// because it returns after about two seconds.
func (a *AdminJobs) ListJobs(ctx context.Context, r adminapi.ListJobsRequest) (page adminapi.Page[adminapi.Job], err error) {
	s, err := a.requireService()
	if err != nil {
		return page, err
	}
	limit := cmp.Or(r.Limit, defaultJobPage)
	if limit < 0 || limit > maxJobPage {
		return page, relay.NewError(relay.CodeInvalidArgument, fmt.Sprintf("limit is not a number from 1 to %d", maxJobPage)).
			WithExtra("parameter", "limit")
	}
	if r.After != "" && !isJobID(r.After) {
		return page, relay.NewError(relay.CodeInvalidArgument, "after is not the value of next in an earlier response").
			WithExtra("parameter", "after")
	}
	states, err := parseStates(r.States)
	if err != nil {
		return page, err
	}
	ids, err := s.store.recentJobs(ctx)
	if err != nil {
		return page, err
	}
	if r.After != "" {
		first := slices.IndexFunc(ids, func(id storedJobID) bool { return id.id < r.After })
		if first < 0 {
			return page, nil
		}
		ids = ids[first:]
	}
	deadline, last := time.Now().Add(listJobsTime), r.After
	for part := range slices.Chunk(ids, jobsPerRead) {
		if time.Now().After(deadline) {
			page.Next = last
			return page, nil
		}
		jobs, err := s.store.loadJobs(ctx, part)
		if err != nil {
			return page, err
		}
		for _, j := range jobs {
			switch {
			case !isSelected(j, &r, states):
			case len(page.Data) == limit:
				page.Next = page.Data[limit-1].ID
				return page, nil
			default:
				page.Data = append(page.Data, j.toAdminView())
			}
		}
		last = part[len(part)-1].id
	}
	return page, nil
}

func isSelected(j *job, r *adminapi.ListJobsRequest, states []relay.JobState) bool {
	return (r.HubID == "" || r.HubID == j.Hub) && (r.ContainerID == "" || r.ContainerID == j.Container) &&
		(r.InstanceID == "" || r.InstanceID == j.Instance) && (len(states) == 0 || slices.Contains(states, j.State))
}

// parseStates returns the states of a request. Each text may contain several, separated by commas.
func parseStates(lists []string) (states []relay.JobState, err error) {
	known := []relay.JobState{
		relay.JobNew, relay.JobQueued, relay.JobScheduled, relay.JobRunning, relay.JobCompleted, relay.JobError, relay.JobExpired,
	}
	for text := range strings.SplitSeq(strings.Join(lists, ","), ",") {
		state := relay.JobState(strings.TrimSpace(text))
		switch {
		case state == "":
		case slices.Contains(known, state):
			states = append(states, state)
		default:
			return nil, relay.NewError(relay.CodeInvalidArgument, fmt.Sprintf("%q is not a state of a job", relay.Truncate(text, 60))).
				WithExtra("parameter", "states")
		}
	}
	return states, nil
}

// ShowJob returns a job of any hub.
func (a *AdminJobs) ShowJob(ctx context.Context, id string) (adminapi.Job, error) {
	s, err := a.requireService()
	if err != nil {
		return adminapi.Job{}, err
	}
	j, err := s.findJob(ctx, id)
	if err != nil {
		return adminapi.Job{}, err
	}
	return j.toAdminView(), nil
}

// findJob returns a job of any hub.
func (s *Service) findJob(ctx context.Context, id string) (*job, error) {
	if !isJobID(id) {
		return nil, newNoJobError(id)
	}
	jobs, err := s.store.loadJobs(ctx, s.store.placesOf(id))
	if err != nil {
		return nil, err
	}
	if len(jobs) == 0 {
		return nil, newNoJobError(id)
	}
	return jobs[0], nil
}

func newNoJobError(id string) error {
	return relay.NewError(relay.CodeNoJob,
		fmt.Sprintf("there is no job %q, or it was deleted after 30 days or 100 newer jobs of its instance; "+
			"GET /api/jobs lists all jobs", relay.Truncate(id, 60)))
}

// CreateJob migrates an instance of any hub.
func (a *AdminJobs) CreateJob(ctx context.Context, actor string, r adminapi.CreateJobRequest) (adminapi.Job, error) {
	s, err := a.requireService()
	if err != nil {
		return adminapi.Job{}, err
	}
	for _, member := range [][2]string{
		{"hub_id", r.HubID}, {"container_id", r.ContainerID}, {"instance_id", r.InstanceID}, {"destination_server_id", r.DestinationServerID},
	} {
		if name, value := member[0], member[1]; value == "" {
			return adminapi.Job{}, relay.NewError(relay.CodeMissingArgument, name+" is missing").WithPointer("/" + name)
		}
	}
	if err := checkServerID(r.DestinationServerID, "/destination_server_id"); err != nil {
		return adminapi.Job{}, err
	}
	task, err := s.createJob(ctx, Request{
		Caller:    module.Caller{KeyName: actor, Hub: r.HubID, Sees: func(string) bool { return true }},
		Container: r.ContainerID, Instance: r.InstanceID,
	}, migrateRequest{destination: r.DestinationServerID, copyVolumes: r.CopyVolumes}, "", "")
	if err != nil {
		return adminapi.Job{}, err
	}
	if j, err := s.store.loadJob(ctx, r.HubID, task.JobID); err == nil && j != nil {
		return j.toAdminView(), nil
	}
	// The job is stored, although it cannot be read now.
	return adminapi.Job{
		Job: relay.Job{ID: task.JobID, HubID: r.HubID, Tasks: []relay.JobTask{}}, ContainerID: r.ContainerID, InstanceID: r.InstanceID,
		DestinationServerID: r.DestinationServerID, CopyVolumes: r.CopyVolumes, RequestedBy: actor,
	}, nil
}

func (j *job) toAdminView() adminapi.Job {
	return adminapi.Job{
		Job: j.toView(), AccountID: j.Account, Cluster: j.Cluster, ContainerID: j.Container, InstanceID: j.Instance, SourceServerID: j.Source,
		DestinationServerID: j.Destination, CopyVolumes: j.CopyVolumes, RequestedBy: j.Key, Canceled: j.canceled,
	}
}

// storedJobID is the ID of a job with the partition of its hub.
type storedJobID struct {
	id        string
	partition int
}

// placesOf returns where a job of any hub can be stored.
func (s *jobStore) placesOf(id string) (list []storedJobID) {
	keys := make(map[string]bool)
	for p := range s.keys.Partitions() {
		if key := s.keys.job(id, p); !keys[key] { // the same for all partitions without a cluster
			keys[key] = true
			list = append(list, storedJobID{id, p})
		}
	}
	return list
}

// recentJobs returns the IDs of the newest jobs and of all active jobs in all partitions, the newest first.
func (s *jobStore) recentJobs(ctx context.Context) ([]storedJobID, error) {
	replies, active := make([]*redis.StringSliceCmd, s.keys.Partitions()), make([]*redis.StringSliceCmd, s.keys.Partitions())
	if _, err := s.client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for p := range replies {
			replies[p] = pipe.LRange(ctx, s.keys.recentJobs(p), 0, -1)
			active[p] = pipe.HVals(ctx, s.keys.activeMigrations(p))
		}
		return nil
	}); err != nil {
		return nil, fmt.Errorf("list the jobs: %w", err)
	}
	var list []storedJobID
	for p := range replies {
		for _, id := range slices.Concat(replies[p].Val(), active[p].Val()) {
			list = append(list, storedJobID{id, p})
		}
	}
	// IDs begin with the time.
	slices.SortFunc(list, func(a, b storedJobID) int { return strings.Compare(b.id, a.id) })
	return slices.Compact(list), nil
}

// loadJobs returns the jobs that exist and can be read, in the same order.
func (s *jobStore) loadJobs(ctx context.Context, ids []storedJobID) ([]*job, error) {
	replies := make([]*redis.MapStringStringCmd, len(ids))
	if _, err := s.client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for i, id := range ids {
			replies[i] = pipe.HGetAll(ctx, s.keys.job(id.id, id.partition))
		}
		return nil
	}); err != nil && !errors.Is(err, redis.Nil) {
		return nil, fmt.Errorf("read the jobs: %w", err)
	}
	jobs := make([]*job, 0, len(ids))
	for _, reply := range replies {
		if len(reply.Val()) == 0 {
			continue // it has expired
		}
		if j, err := decodeJob(reply.Val()); err == nil {
			jobs = append(jobs, j)
		}
	}
	return jobs, nil
}
