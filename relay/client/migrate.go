package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"

	"github.com/hubrelay/hubrelay/relay"
)

// Migration is a request to move an instance to another server.
type Migration struct {
	Container string
	Instance  string
	// Destination is the ID of a server in the cluster of the instance.
	Destination string
	// CopyVolumes also moves the contents of the instance's volumes.
	CopyVolumes bool
	// IdempotencyKey makes the request safe to repeat if the result of the first is unknown. An empty key is not sent.
	IdempotencyKey string
}

// Migrate starts the migration of an instance of c.Hub and returns the ID of the job. The error is an [*Error] if the
// server sent an error response.
func (c *Client) Migrate(ctx context.Context, m Migration) (string, error) {
	type stateful struct {
		CopyVolumes bool `json:"copy_volumes"`
	}
	type value struct {
		Destination string    `json:"destination_server_id"`
		Stateful    *stateful `json:"stateful,omitempty"`
	}
	v := value{Destination: m.Destination}
	if m.CopyVolumes {
		v.Stateful = &stateful{true}
	}
	body, err := json.Marshal(struct {
		Action string `json:"action"`
		Value  value  `json:"value"`
	}{"migrate", v})
	if err != nil {
		return "", err
	}
	header := http.Header{"Content-Type": {"application/json"}}
	if m.IdempotencyKey != "" {
		header.Set("Idempotency-Key", m.IdempotencyKey)
	}
	var task relay.TaskDescriptor
	if err := c.doJSON(ctx, http.MethodPost, tasksPath(m.Container, m.Instance), header, body, &task); err != nil {
		return "", fmt.Errorf("migrate: %w", err)
	}
	if task.JobID == "" {
		return "", errors.New("migrate: the response has no job ID; check that the address is a relay's")
	}
	return task.JobID, nil
}

// Job returns a job of c.Hub. The error is an [*Error] if the server sent an error response.
func (c *Client) Job(ctx context.Context, id string) (relay.Job, error) {
	var j relay.Job
	if err := c.doJSON(ctx, http.MethodGet, "/v1/jobs/"+url.PathEscape(id), nil, nil, &j); err != nil {
		return relay.Job{}, fmt.Errorf("show the job %s: %w", relay.Truncate(id, 60), err)
	}
	return j, nil
}

// Jobs returns the IDs of the jobs of an instance of c.Hub, newest first. The error is an [*Error] if the server sent
// an error response.
func (c *Client) Jobs(ctx context.Context, container, instance string) ([]string, error) {
	var list []relay.TaskDescriptor
	if err := c.doJSON(ctx, http.MethodGet, tasksPath(container, instance), nil, nil, &list); err != nil {
		return nil, fmt.Errorf("list the jobs of an instance: %w", err)
	}
	ids := make([]string, len(list))
	for i, d := range list {
		ids[i] = d.JobID
	}
	return ids, nil
}

func tasksPath(container, instance string) string {
	return "/v1/containers/" + url.PathEscape(container) + "/instances/" + url.PathEscape(instance) + "/tasks"
}
