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

// Inventory lists and imports the inventory. Its methods may be called concurrently and honor ctx.
type Inventory interface {
	List(ctx context.Context) (migration.Listing, error)
	Import(ctx context.Context, f *migration.File) (migration.Changes, error)
	// DriverError returns the reason why the driver of this node cannot work, or nil.
	DriverError() error
}

// maxProblems is the maximum number of listed errors in an inventory.
const maxProblems = 100

// onInventory adapts an operation on the inventory. It returns an error if migrations are disabled.
func (o *apiHandler) onInventory(op func(v Inventory, r *http.Request) (int, any, error)) dataHandler {
	return func(r *http.Request) (int, any, error) {
		if o.inventory == nil {
			return 0, nil, relay.NewError(relay.CodeNotEnabled,
				"migrations are disabled, so there is no inventory: configure migration.driver and restart the daemon")
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
	// MovedFrom is the server in the file, if a job has moved the instance to another one.
	MovedFrom string `json:"moved_from,omitempty"`
	// Job is the job that is moving the instance.
	Job string `json:"job_id,omitempty"`
}

// showInventory returns the inventory without the settings of the servers, which may contain secrets.
func showInventory(v Inventory, r *http.Request) (int, any, error) {
	list, err := v.List(r.Context())
	servers := make([]serverView, 0, len(list.Servers))
	for _, s := range list.Servers {
		servers = append(servers, serverView{s.ID, s.Cluster, append([]string{}, s.Instances...)})
	}
	containers := make([]containerView, 0, len(list.Containers))
	for _, c := range list.Containers {
		view := containerView{
			c.ID, c.Hub, c.Account, c.Environment, c.Stateful, make([]instanceView, 0, len(c.Instances)),
		}
		for _, i := range c.Instances {
			view.Instances = append(view.Instances, instanceView{
				ID: i.ID, Server: i.Server, MovedFrom: i.MovedFrom, Job: i.Job,
			})
		}
		containers = append(containers, view)
	}
	driverError := ""
	if err := v.DriverError(); err != nil {
		driverError = err.Error()
	}
	return http.StatusOK, struct {
		Version    int64           `json:"version"`
		Servers    []serverView    `json:"servers"`
		Containers []containerView `json:"containers"`
		// DriverError is the reason why the driver of this node cannot work. Jobs wait until it can.
		DriverError string `json:"driver_error,omitempty"`
	}{list.Version, servers, containers, driverError}, err
}

type changeView struct {
	Added   int `json:"added"`
	Changed int `json:"changed"`
	Removed int `json:"removed"`
}

// importInventory imports the body as the complete inventory. The format is YAML or JSON.
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
	var rejected *migration.RejectedError
	var servers *migration.ServersError
	switch {
	case errors.As(err, &servers):
		return 0, nil, relay.NewError(relay.CodeInvalidArgument,
			servers.Error()).WithPointer("/clusters").WithExtra("server", servers.Server)
	case errors.As(err, &rejected):
		return 0, nil, relay.NewError(relay.CodeInvalidState,
			rejected.Reason).WithExtra("instances", rejected.Instances)
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

// validationError returns the errors in an inventory: the first one as text, all of them in a list.
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

// handleInventory handles the listing and the import at one address.
func (o *apiHandler) handleInventory(pattern string) {
	show, change := o.onInventory(showInventory), o.onInventory(importInventory)
	o.handle(pattern, migration.MaxFile, adminapi.RoleAdmin, func(r *http.Request) (int, any, error) {
		if r.Method == http.MethodGet || r.Method == http.MethodHead {
			return show(r)
		}
		return change(r)
	}, http.MethodGet, http.MethodHead, http.MethodPut, http.MethodPost)
}
