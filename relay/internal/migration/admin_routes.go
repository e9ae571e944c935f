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
				"migrations are disabled, so there is no inventory; configure migration.driver and restart the relay")
		}
		return nodeInventory{m.inventory, m.worker}, nil
	})
}

// adminRoutes returns the routes of an inventory. get returns an error if there is no inventory.
func adminRoutes(get func() (adminInventory, error)) []module.AdminRoute {
	return []module.AdminRoute{
		{
			Operation: adminapi.ListInventory().Description,
			Handle: func(r *http.Request, _ []byte) (any, error) {
				v, err := get()
				if err != nil {
					return nil, err
				}
				return listInventory(r.Context(), v)
			},
		},
		{
			Operation: adminapi.ImportInventory().Description, MaxBody: MaxFile,
			Handle: func(r *http.Request, body []byte) (any, error) {
				v, err := get()
				if err != nil {
					return nil, err
				}
				return importInventory(r.Context(), v, body)
			},
		},
	}
}

// listInventory returns the inventory without the settings of the servers, which may contain secrets.
func listInventory(ctx context.Context, v adminInventory) (adminapi.Inventory, error) {
	list, err := v.List(ctx)
	inventory := adminapi.Inventory{
		Version: list.Version, Servers: []adminapi.Server{}, Containers: []adminapi.Container{},
	}
	for _, s := range list.Servers {
		inventory.Servers = append(inventory.Servers, adminapi.Server{
			ID: s.ID, Cluster: s.Cluster, Instances: append([]string{}, s.Instances...),
		})
	}
	for _, c := range list.Containers {
		one := adminapi.Container{
			ID: c.ID, HubID: c.Hub, AccountID: c.Account, EnvironmentID: c.Environment, Stateful: c.Stateful,
			Instances: []adminapi.Instance{},
		}
		for _, i := range c.Instances {
			one.Instances = append(one.Instances, adminapi.Instance{
				ID: i.ID, ServerID: i.Server, MovedFrom: i.MovedFrom, JobID: i.Job,
			})
		}
		inventory.Containers = append(inventory.Containers, one)
	}
	if err := v.DriverError(); err != nil {
		inventory.DriverError = err.Error()
	}
	return inventory, err
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
	return adminapi.InventoryChanges{
		Changed: c.Any(), Servers: adminapi.ChangeCount(c.Servers), Containers: adminapi.ChangeCount(c.Containers),
		Instances: adminapi.ChangeCount(c.Instances), MovesCleared: c.MovesCleared,
	}, err
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
