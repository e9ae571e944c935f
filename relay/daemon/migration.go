package daemon

import (
	"context"
	"errors"
	"fmt"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/adminserver"
	"github.com/hubrelay/hubrelay/relay/internal/config"
	"github.com/hubrelay/hubrelay/relay/internal/lease"
	"github.com/hubrelay/hubrelay/relay/internal/migration"
	"github.com/hubrelay/hubrelay/relay/internal/publicapi"
)

// openDriver creates the migration driver. It returns nil if none is configured.
func openDriver(c *config.Config, s Options, metrics *adminserver.Metrics) (relay.Driver, error) {
	cfg := c.Migration.Driver
	if !cfg.IsSet {
		return nil, nil
	}
	if s.Driver == nil {
		return nil, errors.New("migration.driver: this program does not support drivers")
	}
	driver, err := s.Driver.Open(relay.DriverSettings{
		Relay: c.Redis.Identity(), Dir: c.Dir(), Log: s.Log.With("component", "driver"), CountEvent: metrics.DriverEvent,
	}, cfg.Settings)
	if err != nil {
		return nil, fmt.Errorf("migration.driver: %w", err)
	}
	return driver, nil
}

// startMigrations starts the migration worker. It returns the service for the public API, or nil without a driver.
func (a *Daemon) startMigrations(
	ctx context.Context, p *components, s *stores, node *lease.Node,
) publicapi.Migrations {
	log := a.log.With("component", "migration")
	if a.driver == nil {
		log.Debug("migrations are disabled because migration.driver is not configured")
		return nil
	}
	inventory, newID := a.inventory.Load(), a.newDecoder().NewID
	worker := migration.NewWorker(migration.WorkerOptions{
		Redis: s.conn, Inventory: inventory, Driver: a.driver, Name: node.Name,
		ServerConcurrency: a.cfg.Migration.ServerConcurrency, ExpireAfter: a.cfg.Migration.ExpireAfter,
		StallTimeout: a.cfg.Migration.StallTimeout,
		NewID:        newID, Observer: a.metrics, Log: log,
	})
	a.worker.Store(worker)
	p.startComponent(ctx, "migrations", func(ctx context.Context) error {
		return errors.Join(worker.Run(ctx), a.driver.Close())
	})
	return migration.NewService(s.conn, inventory, newID)
}
