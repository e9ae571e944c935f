package migration

import (
	"context"
	"errors"
	"net/http"
	"strconv"

	"github.com/hubrelay/hubrelay/internal/adminapi"
	"github.com/hubrelay/hubrelay/internal/yamldoc"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/module"
)

// maxProblems is the maximum number of listed errors in an inventory.
const maxProblems = 100

// adminInventory lists and imports the inventory for the admin API.
type adminInventory interface {
	List(ctx context.Context) (Listing, error)
	Import(ctx context.Context, f *File) (Changes, error)
	// DriverError returns the reason why the driver of this node cannot work, or nil.
	DriverError() error
}

// nodeInventory is the inventory with the error of this node's driver.
type nodeInventory struct {
	*Inventory
	worker *Worker
}

var _ adminInventory = nodeInventory{}

func (n nodeInventory) DriverError() error { return n.worker.DriverError() }

// AdminRoutes returns the listing and the import of the inventory, at one address.
func (m *Module) AdminRoutes() []module.AdminRoute {
	return adminRoutes(func() (adminInventory, error) {
		if m.driver == nil {
			return nil, relay.NewError(relay.CodeNotEnabled,
				"migrations are disabled, so there is no inventory; configure migration.driver and restart the daemon")
		}
		if rejected := m.checkReady(); rejected != nil {
			return nil, rejected
		}
		return nodeInventory{m.inventory.Load(), m.worker.Load()}, nil
	})
}

// adminRoutes returns the routes of an inventory. get returns an error if there is no inventory.
func adminRoutes(get func() (adminInventory, error)) []module.AdminRoute {
	return []module.AdminRoute{{
		Pattern: "/api/inventory", Role: adminapi.RoleAdmin, MaxBody: MaxFile,
		Methods: []string{http.MethodGet, http.MethodHead, http.MethodPut, http.MethodPost},
		Handle: func(r *http.Request, body []byte) (any, error) {
			v, err := get()
			if err != nil {
				return nil, err
			}
			if r.Method == http.MethodGet || r.Method == http.MethodHead {
				return listInventory(r.Context(), v)
			}
			return importInventory(r.Context(), v, body)
		},
	}}
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

// listInventory returns the inventory without the settings of the servers, which may contain secrets.
func listInventory(ctx context.Context, v adminInventory) (any, error) {
	list, err := v.List(ctx)
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
			view.Instances = append(view.Instances, instanceView(i))
		}
		containers = append(containers, view)
	}
	driverError := ""
	if err := v.DriverError(); err != nil {
		driverError = err.Error()
	}
	return struct {
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
func importInventory(ctx context.Context, v adminInventory, body []byte) (any, error) {
	file, err := ParseImport("inventory", body)
	if err != nil {
		return nil, validationError(err)
	}
	c, err := v.Import(ctx, file)
	var rejected *RejectedError
	var servers *ServersError
	switch {
	case errors.As(err, &servers):
		return nil, relay.NewError(relay.CodeInvalidArgument,
			servers.Error()).WithPointer("/clusters").WithExtra("server", servers.Server)
	case errors.As(err, &rejected):
		return nil, relay.NewError(relay.CodeInvalidState,
			rejected.Reason).WithExtra("instances", rejected.Instances)
	case errors.Is(err, ErrImportSuperseded):
		return nil, relay.NewError(relay.CodeInvalidState, err.Error())
	}
	return struct {
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
