// Package migration moves container instances between the servers of a cluster, and stores the inventory of
// servers, containers and instances.
//
// The [Inventory] combines the operator's file with the moves that jobs have made since. The [Service] turns
// requests into jobs, and the [Worker] runs them with a [relay.Driver]. All state is in Redis, so nodes are
// interchangeable. [Module] connects both to the daemon, and relay/daemon/modules.go is the only place that imports
// this package.
//
// A job is stored in the partition of its hub. One script stores each change of a job together with the events of this
// change, so both are stored or neither. Jobs wait in a stream with a consumer group. If the worker of a job stops
// sending heartbeats, another worker claims the job with a higher lease. Every write of a worker includes its lease and
// changes nothing if a higher lease exists. The driver does the same on the servers.
package migration

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hubrelay/hubrelay/internal/filewatch"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/module"
)

// ModuleOptions are the options of a [Module]. Registry and Log are required.
type ModuleOptions struct {
	// OpenDriver creates the driver. It is nil if no driver is configured. In that case all requests get
	// 503.not-enabled. countEvent counts an event of the driver's process.
	OpenDriver func(countEvent func(event string)) (relay.Driver, error)
	// InventoryFile is imported at the start and, if Reload is set, after each change. It may be empty.
	InventoryFile string
	Reload        bool
	// ServerConcurrency, ExpireAfter and StallTimeout are passed to [WorkerOptions].
	ServerConcurrency         int
	ExpireAfter, StallTimeout time.Duration
	Registry                  prometheus.Registerer
	Log                       *slog.Logger
}

// Module connects migrations to the daemon. Its routes may be called when Start has returned.
type Module struct {
	o       ModuleOptions
	log     *slog.Logger
	metrics *metrics
	driver  relay.Driver // nil if no driver is configured
	file    *File        // content of the inventory file at the start, or nil
	watch   *filewatch.Watcher

	// Start sets the following fields, unless no driver is configured.
	service   *Service
	inventory *Inventory
	worker    *Worker
}

// NewModule reads the inventory file and creates the driver. For an invalid file it returns [yamldoc.Problems].
func NewModule(o ModuleOptions) (*Module, error) {
	m := &Module{o: o, log: o.Log.With("component", "migration"), metrics: newMetrics(o.Registry)}
	var err error
	if o.InventoryFile != "" {
		m.watch = filewatch.New(o.InventoryFile) // before the first read, so no change is missed
		if m.file, err = ReadFile(o.InventoryFile); err != nil {
			return nil, err
		}
	}
	if o.OpenDriver == nil {
		return m, nil
	}
	if m.driver, err = o.OpenDriver(m.metrics.countDriverEvent); err != nil {
		return nil, fmt.Errorf("migration.driver: %w", err)
	}
	return m, nil
}

// Start imports the inventory file and starts the worker. If running migrations prevent the import, the inventory stays
// unchanged and the next start tries again.
func (m *Module) Start(ctx context.Context, e module.Env) error {
	if m.driver == nil {
		m.log.Debug("migrations are disabled because migration.driver is not configured")
		return nil
	}
	inventory := NewInventory(e.Redis.Commands(), e.Redis.Keys())
	if err := m.openInventory(ctx, inventory); err != nil {
		return err
	}
	worker := NewWorker(WorkerOptions{
		Redis: e.Redis, Inventory: inventory, Driver: m.driver, Name: e.Node,
		ServerConcurrency: m.o.ServerConcurrency, ExpireAfter: m.o.ExpireAfter, StallTimeout: m.o.StallTimeout,
		NewID: e.NewID, Observer: m.metrics, Log: m.log,
	})
	m.worker, m.inventory, m.service = worker, inventory, NewService(e.Redis, inventory, e.NewID)
	e.Go("migrations", func(ctx context.Context) error { return errors.Join(worker.Run(ctx), m.driver.Close()) })
	if m.o.Reload && m.watch != nil {
		e.Go("inventory file", m.watchFile)
	}
	return nil
}

func (m *Module) openInventory(ctx context.Context, v *Inventory) error {
	if m.file == nil {
		return nil
	}
	v.SetFile(m.file)
	err := m.seedInventory(ctx, v, m.file)
	var rejected *RejectedError
	if errors.As(err, &rejected) && rejected.changesSettings {
		return err // this node would continue the job in another place
	}
	if rejected != nil || errors.Is(err, ErrImportSuperseded) {
		m.log.Warn("inventory file was not imported", "path", m.o.InventoryFile, "reason", err)
		return nil
	}
	return err
}

func (m *Module) seedInventory(ctx context.Context, v *Inventory, file *File) error {
	changes, err := v.Seed(ctx, file)
	if err != nil {
		return fmt.Errorf("import %s: %w", m.o.InventoryFile, err)
	}
	if unfinished, err := v.IsImportUnfinished(ctx); err == nil && unfinished {
		m.log.Warn("an inventory import is in progress or was interrupted; if it was interrupted, import the file again")
	}
	if changes.Any() {
		m.log.Info("inventory file was imported", "path", m.o.InventoryFile,
			"server_count", len(file.Servers), "container_count", len(file.Containers), "cleared_move_count", changes.MovesCleared)
	}
	return nil
}

// watchFile imports the inventory file after each change until ctx ends. An invalid file changes nothing. If running
// migrations prevent the import, the import changes nothing and is tried again.
func (m *Module) watchFile(ctx context.Context) error {
	f := filewatch.Reloader{
		Watch: m.watch, Log: m.log,
		Reload: func() error { return m.reloadFile(ctx) },
		OnRejected: func(err error) {
			m.log.Error("inventory file was not imported", "path", m.o.InventoryFile, "error", err)
		},
	}
	return f.Run(ctx)
}

func (m *Module) reloadFile(ctx context.Context) error {
	file, err := ReadFile(m.o.InventoryFile)
	if err != nil {
		return err
	}
	v := m.inventory
	if err := m.seedInventory(ctx, v, file); err != nil {
		return err
	}
	v.SetFile(file)
	return nil
}

// checkReady rejects requests if migrations are disabled.
func (m *Module) checkReady() *relay.Error {
	if m.driver == nil {
		return relay.NewError(relay.CodeNotEnabled,
			"migrations are disabled on this relay; its operator must configure migration.driver")
	}
	return nil
}
