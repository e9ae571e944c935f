package app

import (
	"context"
	"errors"
	"fmt"

	"github.com/hubrelay/hubrelay/relay/admin"
	"github.com/hubrelay/hubrelay/relay/backbone"
	"github.com/hubrelay/hubrelay/relay/migration"
)

// openInventory opens the inventory where the daemon migrates, and fills it from the configured file. What forbids that for
// now stops nothing: the inventory stays as it is, and the next start tries again.
func (a *App) openInventory(ctx context.Context, b *backbone.Backbone) error {
	if !a.cfg.Migration.Driver.Given() {
		return nil
	}
	v := migration.NewInventory(b.Commands(), b.Keys())
	if a.set.Inventory != nil {
		changes, err := v.Seed(ctx, a.set.Inventory)
		var refused *migration.RefusedError
		switch {
		case errors.As(err, &refused), errors.Is(err, migration.ErrOvertaken):
			a.log.Warn("the inventory file was not imported", "file", a.cfg.Migration.InventoryFile, "reason", err)
		case err != nil:
			return fmt.Errorf("import %s: %w", a.cfg.Migration.InventoryFile, err)
		case changes.Any():
			a.log.Info("the inventory file was imported", "file", a.cfg.Migration.InventoryFile,
				"servers", len(a.set.Inventory.Servers), "containers", len(a.set.Inventory.Containers))
		}
	}
	a.inventory.Store(v)
	return nil
}

// adminInventory is what the admin API asks for the inventory, nil where there is none.
func (a *App) adminInventory() func() admin.Inventory {
	if !a.cfg.Migration.Driver.Given() {
		return nil
	}
	return func() admin.Inventory {
		if v := a.inventory.Load(); v != nil {
			return nodeInventory{v, a}
		}
		return nil
	}
}

// nodeInventory is the inventory with what this node's driver says to it.
type nodeInventory struct {
	*migration.Inventory
	app *App
}

func (n nodeInventory) Ailment() error {
	if worker := n.app.worker.Load(); worker != nil {
		return worker.Ailment()
	}
	return nil
}
