package daemon

import (
	"context"
	"errors"
	"fmt"

	"github.com/hubrelay/hubrelay/internal/yamldoc"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/config"
	"github.com/hubrelay/hubrelay/relay/internal/lease"
	"github.com/hubrelay/hubrelay/relay/internal/lifecycle"
	"github.com/hubrelay/hubrelay/relay/internal/metrics"
	"github.com/hubrelay/hubrelay/relay/internal/migration"
	"github.com/hubrelay/hubrelay/relay/internal/module"
)

// newModules returns the modules. Only this file knows them by name.
func newModules(c *config.Config, s Options, m *metrics.Metrics) (modules, error) {
	o := migration.ModuleOptions{
		InventoryFile: c.Migration.InventoryFile, Reload: s.Reload != nil,
		ServerConcurrency: c.Migration.ServerConcurrency, ExpireAfter: c.Migration.ExpireAfter,
		StallTimeout: c.Migration.StallTimeout, Registry: m.Registry(), Log: s.Log,
	}
	if c.Migration.Driver.IsSet {
		o.OpenDriver = func(countEvent func(event string)) (relay.Driver, error) {
			if s.Driver == nil {
				return nil, errors.New("this program does not support drivers")
			}
			return s.Driver.Open(relay.DriverSettings{
				Relay: c.Redis.Identity(), Dir: c.Dir(), Log: s.Log.With("component", "driver"), CountEvent: countEvent,
			}, c.Migration.Driver.Settings)
		}
	}
	migrations, err := migration.NewModule(o)
	if err != nil {
		return modules{}, err
	}
	return modules{migrations}, nil
}

// CheckInventory reads an inventory file and returns the numbers of its servers and containers. Invalid values are
// returned as [yamldoc.Problems].
func CheckInventory(path string) (servers, containers int, err error) {
	f, err := migration.ReadFile(path)
	if err != nil {
		return 0, 0, err
	}
	return len(f.Servers), len(f.Containers), nil
}

// ReadImport reads and checks a file for an import into the inventory. Invalid values are returned as
// [yamldoc.Problems].
func ReadImport(path string) ([]byte, error) {
	data, err := yamldoc.ReadBounded(path, migration.MaxFile)
	if err != nil {
		return nil, fmt.Errorf("%s cannot be read: %s", path, yamldoc.OpenErrorReason(err))
	}
	_, err = migration.ParseImport(path, data)
	return data, err
}

// modules are the optional parts of the daemon.
type modules struct{ migrations *migration.Module }

func (m modules) adminRoutes() []module.AdminRoute { return m.migrations.AdminRoutes() }

func (m modules) publicRoutes() []module.PublicRoute { return m.migrations.PublicRoutes() }

// startModules starts the modules.
func (d *Daemon) startModules(ctx context.Context, group *lifecycle.Group, s *stores, node *lease.Node) error {
	return d.modules.migrations.Start(ctx, module.Env{
		Redis: s.conn, Node: node.Name, NewID: d.newDecoder().NewID,
		Go: func(name string, run func(context.Context) error) { group.Start(ctx, name, run) },
	})
}
