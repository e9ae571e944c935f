package adminserver

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"

	"github.com/hubrelay/hubrelay/internal/adminapi"
	"github.com/hubrelay/hubrelay/internal/yamldoc"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/migration"
)

// Inventory is what an operator can do with the inventory of servers and instances. Its methods may be called concurrently
// and honour their context.
type Inventory interface {
	List(ctx context.Context) (migration.Listing, error)
	Import(ctx context.Context, f *migration.File) (migration.Changes, error)
	// DriverError is why the driver of this node cannot work with it, nil where it can.
	DriverError() error
}

// maxProblems is how many mistakes in an inventory an answer names.
const maxProblems = 100

// onInventory gives a request the inventory, if there is one.
func (o *apiHandler) onInventory(op func(v Inventory, r *http.Request) (int, any, error)) dataHandler {
	return func(r *http.Request) (int, any, error) {
		if o.inventory == nil {
			return 0, nil, relay.NewError(relay.CodeNotEnabled,
				"this daemon has no driver for migrations, and so no inventory: give it one under migration.driver in its configuration, and restart it")
		}
		v := o.inventory()
		if v == nil {
			return 0, nil, errStarting()
		}
		return op(v, r)
	}
}

type serverView struct {
	ID        string   `json:"id"`
	Cluster   string   `json:"cluster"`
	Instances []string `json:"instances"`
}

type containerView struct {
	ID          string         `json:"id"`
	Hub         string         `json:"hub_id"`
	Account     string         `json:"account_id,omitempty"`
	Environment string         `json:"environment_id,omitempty"`
	Stateful    bool           `json:"stateful"`
	Instances   []instanceView `json:"instances"`
}

type instanceView struct {
	ID     string `json:"id"`
	Server string `json:"server_id"`
	// MovedFrom is the server that the file names, where a job has moved the instance to another since.
	MovedFrom string `json:"moved_from,omitempty"`
	// Job is the job that moves the instance now.
	Job string `json:"job_id,omitempty"`
}

// showInventory leaves out the settings of the servers, which may hold secrets.
func showInventory(v Inventory, r *http.Request) (int, any, error) {
	list, err := v.List(r.Context())
	servers := make([]serverView, 0, len(list.Servers))
	for _, s := range list.Servers {
		servers = append(servers, serverView{s.ID, s.Cluster, append([]string{}, s.Instances...)})
	}
	containers := make([]containerView, 0, len(list.Containers))
	for _, c := range list.Containers {
		shown := containerView{c.ID, c.Hub, c.Account, c.Environment, c.Stateful, make([]instanceView, 0, len(c.Instances))}
		for _, i := range c.Instances {
			shown.Instances = append(shown.Instances, instanceView{ID: i.ID, Server: i.Server, MovedFrom: i.MovedFrom, Job: i.Job})
		}
		containers = append(containers, shown)
	}
	trouble := ""
	if ailment := v.DriverError(); ailment != nil {
		trouble = ailment.Error()
	}
	return http.StatusOK, struct {
		Version    int64           `json:"version"`
		Servers    []serverView    `json:"servers"`
		Containers []containerView `json:"containers"`
		// DriverError is why the driver of this node cannot work; jobs wait until it can.
		DriverError string `json:"driver_error,omitempty"`
	}{list.Version, servers, containers, trouble}, err
}

type changeView struct {
	Added   int `json:"added"`
	Changed int `json:"changed"`
	Removed int `json:"removed"`
}

// importInventory takes the body as the whole inventory, YAML or JSON.
func importInventory(v Inventory, r *http.Request) (int, any, error) {
	body, err := io.ReadAll(r.Body)
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return 0, nil, tooLarge(migration.MaxFile)
	case err != nil:
		return 0, nil, bodyIncomplete()
	}
	file, err := migration.ParseImport("inventory", body)
	if err != nil {
		return 0, nil, validationError(err)
	}
	c, err := v.Import(r.Context(), file)
	var refused *migration.RejectedError
	var servers *migration.ServersError
	switch {
	case errors.As(err, &servers):
		return 0, nil, relay.NewError(relay.CodeInvalidArgument, servers.Error()).WithPointer("/clusters").WithExtra("server", servers.Server)
	case errors.As(err, &refused):
		return 0, nil, relay.NewError(relay.CodeInvalidState, refused.Reason).WithExtra("instances", refused.Instances)
	case errors.Is(err, migration.ErrImportSuperseded):
		return 0, nil, relay.NewError(relay.CodeInvalidState, err.Error())
	}
	return http.StatusOK, struct {
		Changed    bool       `json:"changed"`
		Servers    changeView `json:"servers"`
		Containers changeView `json:"containers"`
		Instances  changeView `json:"instances"`
		Forgotten  int        `json:"moves_forgotten"`
	}{c.Any(), changeView(c.Servers), changeView(c.Containers), changeView(c.Instances), c.MovesCleared}, err
}

// validationError says what is wrong in an inventory: the first mistake in words, all in a list for programs.
func validationError(err error) error {
	var problems yamldoc.Problems
	if !errors.As(err, &problems) || len(problems) == 0 {
		return err
	}
	detail := problems[0].String()
	if more := len(problems) - 1; more > 0 {
		detail += ", and " + strconv.Itoa(more) + " more"
	}
	lines := make([]string, min(len(problems), maxProblems))
	for i := range lines {
		lines[i] = problems[i].String()
	}
	return relay.NewError(relay.CodeInvalidArgument, detail).WithExtra("problems", lines)
}

// handleInventory is one address with two operations.
func (o *apiHandler) handleInventory(pattern string) {
	show, change := o.onInventory(showInventory), o.onInventory(importInventory)
	o.handle(pattern, migration.MaxFile, adminapi.RoleAdmin, func(r *http.Request) (int, any, error) {
		if r.Method == http.MethodGet || r.Method == http.MethodHead {
			return show(r)
		}
		return change(r)
	}, http.MethodGet, http.MethodHead, http.MethodPut, http.MethodPost)
}
