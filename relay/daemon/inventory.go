package daemon

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hubrelay/hubrelay/relay/internal/adminserver"
	"github.com/hubrelay/hubrelay/relay/internal/migration"
)

// openInventory opens the inventory where the daemon migrates, and fills it from the configured file. What forbids that for
// now stops nothing: the inventory stays as it is, and the next start tries again.
func (a *App) openInventory(ctx context.Context, s *stores) error {
	if !a.cfg.Migration.Driver.IsSet() {
		return nil
	}
	v := migration.NewInventory(s.conn.Commands(), s.keys)
	if file := a.settings.Inventory; file != nil {
		v.SetFile(file)
		err := a.seedInventory(ctx, v, file)
		switch {
		case isInventoryRefused(err):
			a.log.Warn("the inventory file was not imported", "file", a.cfg.Migration.InventoryFile, "reason", err)
		case err != nil:
			return err
		}
	}
	a.inventory.Store(v)
	return nil
}

// isInventoryRefused reports whether the inventory stays as it is although its file is good.
func isInventoryRefused(err error) bool {
	var refused *migration.RefusedError
	return errors.As(err, &refused) || errors.Is(err, migration.ErrImportSuperseded)
}

func (a *App) seedInventory(ctx context.Context, v *migration.Inventory, file *migration.File) error {
	changes, err := v.Seed(ctx, file)
	if err != nil {
		return fmt.Errorf("import %s: %w", a.cfg.Migration.InventoryFile, err)
	}
	if changes.Any() {
		a.log.Info("the inventory file was imported", "file", a.cfg.Migration.InventoryFile,
			"servers", len(file.Servers), "containers", len(file.Containers))
	}
	return nil
}

// followInventoryFile imports the operator's inventory file after each change until ctx ends. One with mistakes changes
// nothing, nor does one that a migration forbids; that one is tried again.
func (a *App) followInventoryFile(ctx context.Context) error {
	f := &configWatcher{
		watch: a.settings.Reload.inventoryWatcher, log: a.log, onFailing: func() {},
		reload: func() error { return a.reloadInventory(ctx) },
		onRejected: func(err error) {
			a.log.Error("inventory file not imported, the inventory stays as it is", "file", a.cfg.Migration.InventoryFile, "error", err)
		},
	}
	tick := time.NewTicker(configPollInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			f.checkFile()
		}
	}
}

func (a *App) reloadInventory(ctx context.Context) error {
	file, err := LoadInventory(a.settings.Reload.inventoryFile)
	if err != nil {
		return err
	}
	v := a.inventory.Load()
	if err := a.seedInventory(ctx, v, file); err != nil {
		return err
	}
	v.SetFile(file)
	return nil
}

// adminInventory is what the admin API asks for the inventory, nil where there is none.
func (a *App) adminInventory() func() adminserver.Inventory {
	if !a.cfg.Migration.Driver.IsSet() {
		return nil
	}
	return func() adminserver.Inventory {
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

func (n nodeInventory) DriverError() error {
	if worker := n.app.worker.Load(); worker != nil {
		return worker.DriverError()
	}
	return nil
}
