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

// Migration says which instance is to go where.
type Migration struct {
	Container string
	Instance  string
	// Destination is the id of a server of the instance's cluster.
	Destination string
	// CopyVolumes asks for the contents of the instance's volumes to be moved too.
	CopyVolumes bool
	// IdempotencyKey makes it safe to ask again after an error that leaves in doubt what happened; empty sends none.
	IdempotencyKey string
}

// Migrate asks for an instance of c.Hub to be migrated, and returns the id of the job that does it. The error is an
// [*Error] where the server answered one.
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
	var answer relay.TaskDescriptor
	if err := c.doJSON(ctx, http.MethodPost, tasksPath(m.Container, m.Instance), header, body, &answer); err != nil {
		return "", fmt.Errorf("migrate: %w", err)
	}
	if answer.JobID == "" {
		return "", errors.New("migrate: the answer names no job; check that the address is a relay's")
	}
	return answer.JobID, nil
}

// Job returns a job of c.Hub. The error is an [*Error] where the server answered one.
func (c *Client) Job(ctx context.Context, id string) (relay.Job, error) {
	var j relay.Job
	if err := c.doJSON(ctx, http.MethodGet, "/v1/jobs/"+url.PathEscape(id), nil, nil, &j); err != nil {
		return relay.Job{}, fmt.Errorf("look at the job %s: %w", relay.Truncate(id, 60), err)
	}
	return j, nil
}

// Jobs returns the ids of the jobs of an instance of c.Hub, the newest first. The error is an [*Error] where the server
// answered one.
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
