package publicapi

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"strings"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/auth"
	"github.com/hubrelay/hubrelay/relay/internal/httpserver"
	"github.com/hubrelay/hubrelay/relay/internal/migration"
)

// Migrations starts migrations and returns their jobs. A *relay.Error is sent to the client. Any other error is logged
// and sent as 500.unknown. [migration.Service] implements it. It is called concurrently.
type Migrations interface {
	Migrate(ctx context.Context, r migration.Request) (relay.TaskDescriptor, error)
	Jobs(ctx context.Context, c migration.Caller, container, instance string) ([]relay.TaskDescriptor, error)
	Job(ctx context.Context, c migration.Caller, id string) (relay.Job, error)
}

// The paths with parameters. Each parameter is one segment.
const (
	pathTasks = "/v1/containers/{container_id}/instances/{instance_id}/tasks"
	pathJob   = "/v1/jobs/{job_id}"
)

func (a *API) startMigration(w http.ResponseWriter, r *http.Request, params []string) *relay.Error {
	key, hub, refused := a.authorizeWrite(r, auth.CapabilityMigrate, "the hub of the instance")
	if refused != nil {
		return refused
	}
	if refused := a.requireMigrations(); refused != nil {
		return refused
	}
	repeatKey, refused := idempotencyKey(r)
	if refused != nil {
		return refused
	}
	b, done, refused := a.readBody(r)
	if refused != nil {
		return refused
	}
	defer done()
	task, err := a.opt.Migrations.Migrate(r.Context(), migration.Request{
		Caller: newCaller(key, hub), Container: params[0], Instance: params[1],
		ContentType: r.Header.Get("Content-Type"), IdempotencyKey: repeatKey, Body: b.buf,
	})
	return a.writeData(w, r, http.StatusAccepted, task, err)
}

func (a *API) listTasks(w http.ResponseWriter, r *http.Request, params []string) *relay.Error {
	c, refused := a.authorizeRead(r)
	if refused != nil {
		return refused
	}
	list, err := a.opt.Migrations.Jobs(r.Context(), c, params[0], params[1])
	return a.writeData(w, r, http.StatusOK, list, err)
}

func (a *API) showJob(w http.ResponseWriter, r *http.Request, params []string) *relay.Error {
	c, refused := a.authorizeRead(r)
	if refused != nil {
		return refused
	}
	job, err := a.opt.Migrations.Job(r.Context(), c, params[0])
	return a.writeData(w, r, http.StatusOK, job, err)
}

// authorizeRead returns the caller of a read request. All keys that may read the hub are allowed.
func (a *API) authorizeRead(r *http.Request) (migration.Caller, *relay.Error) {
	key, refused := a.authenticate(r)
	if refused != nil {
		return migration.Caller{}, refused
	}
	hub, refused := requireHub(r, key, "the hub to look in")
	if refused != nil {
		return migration.Caller{}, refused
	}
	return newCaller(key, hub), a.requireMigrations()
}

func (a *API) requireMigrations() *relay.Error {
	if a.opt.Migrations == nil {
		return relay.NewError(relay.CodeNotEnabled,
			"this relay has no driver for migrations: its operator names one in migration.driver")
	}
	return nil
}

// authorizeWrite returns the key, which must have the capability, and the hub of the request. hubPurpose describes the
// hub in an error.
func (a *API) authorizeWrite(r *http.Request, capability, hubPurpose string) (*auth.Key, string, *relay.Error) {
	key, refused := a.authenticate(r)
	if refused != nil {
		return nil, "", refused
	}
	if refused := key.RequireCapability(capability); refused != nil {
		return nil, "", refused
	}
	hub, refused := requireHub(r, key, hubPurpose)
	return key, hub, refused
}

func newCaller(key *auth.Key, hub string) migration.Caller {
	grant := key.Grant(hub)
	sees := func(account string) bool { return grant.Allows(hub, account) }
	return migration.Caller{KeyName: key.Name, Hub: hub, Sees: sees}
}

// requireHub returns the value of X-Hub-Id. The header is required, and the key must be able to read the hub.
func requireHub(r *http.Request, key *auth.Key, hubPurpose string) (string, *relay.Error) {
	id, given, refused := hubID(r)
	if refused != nil {
		return "", refused
	}
	if !given {
		return "", relay.NewError(relay.CodeMissingArgument, "the header X-Hub-Id is missing: it names "+hubPurpose)
	}
	return id, key.RequireHub(id)
}

// writeData writes data in a response, or returns the public form of err.
func (a *API) writeData(w http.ResponseWriter, r *http.Request, status int, data any, err error) *relay.Error {
	if err != nil {
		return a.publicError(r, err)
	}
	text, err := json.Marshal(map[string]any{"data": data})
	if err != nil {
		return a.publicError(r, err)
	}
	httpserver.WriteJSON(w, status, append(text, '\n'))
	return nil
}

// matchPattern reports whether a path matches a pattern, and returns the values of the parameters. An escaped slash
// (%2F) belongs to a value, because IDs may contain slashes.
func matchPattern(pattern, escaped string) ([]string, bool) {
	want, got := strings.Split(pattern, "/"), strings.Split(escaped, "/")
	if len(want) != len(got) {
		return nil, false
	}
	var params []string
	for i := range want {
		if !strings.HasPrefix(want[i], "{") {
			if want[i] != got[i] {
				return nil, false
			}
			continue
		}
		value, err := url.PathUnescape(got[i])
		if err != nil || value == "" {
			return nil, false
		}
		params = append(params, value)
	}
	return params, true
}
