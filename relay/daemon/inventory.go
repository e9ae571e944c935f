package daemon

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hubrelay/hubrelay/relay/internal/adminserver"
	"github.com/hubrelay/hubrelay/relay/internal/migration"
)

// openInventory opens the inventory if a driver is configured, and imports the inventory file. If running
// migrations forbid the import, the inventory stays unchanged and the next start tries again.
func (a *Daemon) openInventory(ctx context.Context, s *stores) error {
	if !a.cfg.Migration.Driver.IsSet {
		return nil
	}
	v := migration.NewInventory(s.conn.Commands(), s.keys)
	if file := a.options.Inventory; file != nil {
		v.SetFile(file)
		err := a.seedInventory(ctx, v, file)
		switch {
		case isInventoryRejected(err):
			a.log.Warn("inventory file was not imported", "path", a.cfg.Migration.InventoryFile, "reason", err)
		case err != nil:
			return err
		}
	}
	a.inventory.Store(v)
	return nil
}

// isInventoryRejected reports whether a valid inventory file could not be imported.
func isInventoryRejected(err error) bool {
	var rejected *migration.RejectedError
	return errors.As(err, &rejected) || errors.Is(err, migration.ErrImportSuperseded)
}

func (a *Daemon) seedInventory(ctx context.Context, v *migration.Inventory, file *migration.File) error {
	changes, err := v.Seed(ctx, file)
	if err != nil {
		return fmt.Errorf("import %s: %w", a.cfg.Migration.InventoryFile, err)
	}
	if changes.Any() {
		a.log.Info("inventory file was imported", "path", a.cfg.Migration.InventoryFile,
			"server_count", len(file.Servers), "container_count", len(file.Containers))
	}
	return nil
}

// watchInventoryFile imports the inventory file after each change until ctx ends. An invalid file changes
// nothing. A file that running migrations forbid changes nothing either, and is tried again.
func (a *Daemon) watchInventoryFile(ctx context.Context) error {
	f := &configWatcher{
		watch: a.options.Reload.inventoryWatcher, log: a.log, onFailing: func() {},
		reload: func() error { return a.reloadInventory(ctx) },
		onRejected: func(err error) {
			a.log.Error("inventory file was not imported", "path", a.cfg.Migration.InventoryFile, "error", err)
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

func (a *Daemon) reloadInventory(ctx context.Context) error {
	file, err := LoadInventory(a.options.Reload.inventoryFile)
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

// adminInventory returns the inventory for the admin API, or nil without a driver.
func (a *Daemon) adminInventory() func() adminserver.Inventory {
	if !a.cfg.Migration.Driver.IsSet {
		return nil
	}
	return func() adminserver.Inventory {
		if v := a.inventory.Load(); v != nil {
			return nodeInventory{v, a}
		}
		return nil
	}
}

// nodeInventory is the inventory with the error of this node's driver.
type nodeInventory struct {
	*migration.Inventory
	app *Daemon
}

func (n nodeInventory) DriverError() error {
	if worker := n.app.worker.Load(); worker != nil {
		return worker.DriverError()
	}
	return nil
}
