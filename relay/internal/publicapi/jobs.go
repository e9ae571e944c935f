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

// Migrations starts and shows migrations. A *relay.Error reaches the client as it is; any other error is logged and
// becomes 500.unknown. It is called concurrently; [migration.Service] is one.
type Migrations interface {
	Migrate(ctx context.Context, r migration.Request) (relay.TaskDescriptor, error)
	Jobs(ctx context.Context, c migration.Caller, container, instance string) ([]relay.TaskDescriptor, error)
	Job(ctx context.Context, c migration.Caller, id string) (relay.Job, error)
}

// The paths with names in them; each name stands for one segment.
const (
	pathTasks = "/v1/containers/{container_id}/instances/{instance_id}/tasks"
	pathJob   = "/v1/jobs/{job_id}"
)

func (a *API) startMigration(w http.ResponseWriter, r *http.Request, names []string) *relay.Error {
	key, hub, refused := a.authorizeWrite(r, auth.CapabilityMigrate, "the hub of the instance")
	if refused != nil {
		return refused
	}
	if refused := a.requireMigrations(); refused != nil {
		return refused
	}
	repeat, refused := idempotencyKey(r)
	if refused != nil {
		return refused
	}
	b, done, refused := a.readBody(r)
	if refused != nil {
		return refused
	}
	defer done()
	task, err := a.opt.Migrations.Migrate(r.Context(), migration.Request{
		Caller: callerOf(key, hub), Container: names[0], Instance: names[1],
		ContentType: r.Header.Get("Content-Type"), IdempotencyKey: repeat, Body: b.buf,
	})
	return a.writeData(w, r, http.StatusAccepted, task, err)
}

func (a *API) listTasks(w http.ResponseWriter, r *http.Request, names []string) *relay.Error {
	c, refused := a.callerFor(r)
	if refused != nil {
		return refused
	}
	list, err := a.opt.Migrations.Jobs(r.Context(), c, names[0], names[1])
	return a.writeData(w, r, http.StatusOK, list, err)
}

func (a *API) showJob(w http.ResponseWriter, r *http.Request, names []string) *relay.Error {
	c, refused := a.callerFor(r)
	if refused != nil {
		return refused
	}
	view, err := a.opt.Migrations.Job(r.Context(), c, names[0])
	return a.writeData(w, r, http.StatusOK, view, err)
}

// callerFor returns who wants to look; any key of the hub may.
func (a *API) callerFor(r *http.Request) (migration.Caller, *relay.Error) {
	key, refused := a.authenticate(r)
	if refused != nil {
		return migration.Caller{}, refused
	}
	hub, refused := namedHub(r, key, "the hub to look in")
	if refused != nil {
		return migration.Caller{}, refused
	}
	return callerOf(key, hub), a.requireMigrations()
}

func (a *API) requireMigrations() *relay.Error {
	if a.opt.Migrations == nil {
		return relay.NewError(relay.CodeNotEnabled, "this relay has no driver for migrations: its operator names one in migration.driver")
	}
	return nil
}

// authorizeWrite returns the key, which must have the capability, and the hub in which it is to be used.
func (a *API) authorizeWrite(r *http.Request, capability, what string) (*auth.Key, string, *relay.Error) {
	key, refused := a.authenticate(r)
	if refused != nil {
		return nil, "", refused
	}
	if refused := key.RequireCapability(capability); refused != nil {
		return nil, "", refused
	}
	hub, refused := namedHub(r, key, what)
	return key, hub, refused
}

func callerOf(key *auth.Key, hub string) migration.Caller {
	grant := key.Grant(hub)
	return migration.Caller{KeyName: key.Name, Hub: hub, Sees: func(account string) bool { return grant.Allows(hub, account) }}
}

// namedHub returns X-Hub-Id, which must be there and be of a hub that the key opens.
func namedHub(r *http.Request, key *auth.Key, what string) (string, *relay.Error) {
	id, given, refused := hubID(r)
	if refused != nil {
		return "", refused
	}
	if !given {
		return "", relay.NewError(relay.CodeMissingArgument, "the header X-Hub-Id is missing: it names "+what)
	}
	return id, key.RequireHub(id)
}

// writeData answers with what a client may see of an outcome.
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

// matchPattern tells whether a path is of a pattern, and what stands for its names. A slash that is written as %2F is part of a
// name, as it is of an id.
func matchPattern(pattern, escaped string) ([]string, bool) {
	want, got := strings.Split(pattern, "/"), strings.Split(escaped, "/")
	if len(want) != len(got) {
		return nil, false
	}
	var names []string
	for i := range want {
		if !strings.HasPrefix(want[i], "{") {
			if want[i] != got[i] {
				return nil, false
			}
			continue
		}
		name, err := url.PathUnescape(got[i])
		if err != nil || name == "" {
			return nil, false
		}
		names = append(names, name)
	}
	return names, true
}
