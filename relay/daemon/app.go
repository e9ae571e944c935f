package daemon

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"sync/atomic"
	"time"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/adminserver"
	"github.com/hubrelay/hubrelay/relay/internal/auth"
	"github.com/hubrelay/hubrelay/relay/internal/config"
	"github.com/hubrelay/hubrelay/relay/internal/delivery"
	"github.com/hubrelay/hubrelay/relay/internal/dispatch"
	"github.com/hubrelay/hubrelay/relay/internal/httpserver"
	"github.com/hubrelay/hubrelay/relay/internal/hub"
	"github.com/hubrelay/hubrelay/relay/internal/ingest"
	"github.com/hubrelay/hubrelay/relay/internal/lease"
	"github.com/hubrelay/hubrelay/relay/internal/migration"
	"github.com/hubrelay/hubrelay/relay/internal/publicapi"
)

// leaseTime is how long the work of a node that was killed waits before another takes it over.
const leaseTime = 10 * time.Second

// Settings is what the program hands to the daemon, as opposed to what an operator writes in the configuration.
type Settings struct {
	// Version is shown in metrics and to receivers.
	Version string
	// Log must not be nil.
	Log *slog.Logger
	// SinkKinds are the sinks that the configuration may name.
	SinkKinds []relay.SinkKind
	// Driver is how the daemon comes to a driver of migrations; nil where it knows none.
	Driver *relay.DriverKind
	// Inventory is what the file of migration.inventory_file says, or nil.
	Inventory *migration.File
	// Reload, where not nil, brings other configurations while the daemon runs.
	Reload *ReloadSource
	// Ready, where not nil, is called once, when everything has started.
	Ready func(Addresses)
}

// Addresses are what the daemon listens on.
type Addresses struct{ Public, Health, Admin net.Addr }

// App is one daemon.
type App struct {
	cfg      *config.Config
	settings Settings
	log      *slog.Logger
	catalog  *relay.Catalog
	keys     *keyLoader
	metrics  *adminserver.Metrics
	health   *adminserver.Health
	admin    *adminserver.Admin
	logins   *logins // nil while the admin listener is a unix socket
	ready    readyCheck
	latest   reloadStatus

	driver      relay.Driver // nil where none is configured
	sinks       sinkRegistry
	delivery    *deliveryService // nil before it has started, as what follows
	notices     *delivery.Notices
	dispatchers []*dispatch.Dispatcher

	store      atomic.Pointer[delivery.Store] // nil until Redis is there
	operations atomic.Pointer[sinkAdmin]
	worker     atomic.Pointer[migration.Worker]
	inventory  atomic.Pointer[migration.Inventory] // nil until it is filled, and without a driver
	sources    atomic.Pointer[sourceManager]
	clients    atomic.Pointer[hub.Hub]
}

// New checks what a configuration cannot know of itself, and starts nothing. Nobody may change cfg afterwards.
func New(cfg *config.Config, s Settings) (*App, error) {
	a := &App{cfg: cfg, settings: s, log: s.Log, metrics: adminserver.NewMetrics(s.Version)}
	a.latest.setMetric = a.metrics.Reloaded
	var err error
	if a.catalog, err = relay.NewCatalog(cfg.Notifications.ExtraTopics); err != nil {
		return nil, fmt.Errorf("notifications.extra_topics: %w", err)
	}
	if a.keys, err = newKeys(cfg.Auth.Keys); err != nil {
		return nil, err
	}
	if cfg.Admin.Listen != "" {
		if a.logins, err = newLogins(cfg.Admin.Tokens); err != nil {
			return nil, err
		}
	}
	if a.driver, err = openDriver(cfg.Migration.Driver, cfg.Redis, s, a.metrics); err != nil {
		return nil, err
	}
	sinks, err := a.openSinks(cfg.Sinks)
	if err != nil {
		return nil, err
	}
	for _, s := range sinks {
		a.metrics.InitSink(s.name)
	}
	warnRateConflicts(a.log, sinks, nil)
	a.sinks.add(sinks...)
	return a, nil
}

// Run runs the daemon until ctx ends, then stops it in order, and returns nil; or the error that made it stop. It can
// be called once.
func (a *App) Run(ctx context.Context) error {
	p := newParts(a.log)
	defer a.closeAllSinks()
	// The health and admin listeners stop last, so health and metrics show the stop too.
	err := a.start(ctx, p)
	if err == nil {
		err = p.wait(ctx)
	}
	if ctx.Err() != nil {
		err = nil // a start that was interrupted did not fail
		a.log.Info("stopping", "grace", a.cfg.Server.ShutdownGrace.String())
	}
	a.stop(p)
	if err == nil {
		a.log.Info("stopped")
	}
	return err
}

// stop says first that the daemon is not ready any more, then ends everything: whoever asks finds that out while the public
// listener still takes connections.
func (a *App) stop(p *components) {
	if a.health != nil {
		a.health.Drain()
	}
	p.stop(a.cfg.Server.ShutdownGrace + stopMargin)
}

// stopMargin is what closing Redis and the listeners may take beyond the grace of the work itself.
const stopMargin = 5 * time.Second

func (a *App) start(ctx context.Context, p *components) error {
	health, err := a.startHealth(ctx, p)
	if err != nil {
		return err
	}
	private, err := a.startAdmin(ctx, p, health)
	if err != nil {
		return err
	}
	s, err := a.openStores(ctx, p)
	if err != nil {
		return err
	}
	if err := a.openInventory(ctx, s); err != nil {
		return err
	}
	node, err := joinNode(ctx, p, s.leases)
	if err != nil {
		return err
	}
	clients := hub.New(a.hubOptions(s))
	a.clients.Store(clients)
	a.metrics.SetQueueFunc(clients.QueueStats)
	store := delivery.NewStore(s.conn.Commands(), s.keys)
	a.store.Store(store)
	if err := a.startDelivery(ctx, p, s, store, node); err != nil {
		return err
	}
	if err := a.startLog(ctx, p, s, clients); err != nil {
		return err
	}
	a.openAdminAPI(s, store)
	p.startComponent(ctx, "figures", func(ctx context.Context) error { return a.updateSinkStats(ctx, s.queues, store) })
	instance, err := s.conn.Instance(ctx)
	if err != nil {
		return err
	}
	public, err := a.startPublic(ctx, p, s, clients, a.startMigrations(ctx, p, s, node), instance)
	if err != nil {
		return err
	}
	a.startSources(ctx, p, s, instance, node.Name)
	if a.settings.Reload != nil {
		p.startComponent(ctx, "configuration", func(ctx context.Context) error { return a.watchConfig(ctx, clients) })
		if a.settings.Reload.inventoryWatcher != nil && a.inventory.Load() != nil {
			p.startComponent(ctx, "inventory file", a.followInventoryFile)
		}
	}
	if a.settings.Ready != nil {
		a.settings.Ready(Addresses{Public: public, Health: health, Admin: private})
	}
	return nil
}

// joinNode takes a node number. The end of ctx interrupts the wait for it and does not give it back: that is the part's
// own end.
func joinNode(ctx context.Context, p *components, leases *lease.Manager) (*lease.Node, error) {
	keep, cancel := context.WithCancel(context.WithoutCancel(ctx))
	interrupt := context.AfterFunc(ctx, cancel)
	node, err := leases.JoinNode(keep)
	if err == nil && !interrupt() {
		node.Leave()
		err = ctx.Err()
	}
	if err != nil {
		cancel()
		return nil, fmt.Errorf("join the other nodes: %w", err)
	}
	p.startComponent(ctx, "node", func(ctx context.Context) error {
		defer cancel()
		defer node.Leave()
		select {
		case <-ctx.Done():
			return nil
		case <-node.Lost:
			return fmt.Errorf("%s was taken by another process while Redis was out of reach; a restart joins anew", node.Name)
		}
	})
	return node, nil
}

// serveClients pings the clients; at the stop it sends them away within the grace.
func (a *App) serveClients(ctx context.Context, clients *hub.Hub) error {
	err := clients.Run(ctx)
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), a.cfg.Server.ShutdownGrace)
	defer cancel()
	if closeErr := clients.Close(grace); err == nil {
		err = closeErr
	}
	return err
}

func (a *App) startPublic(ctx context.Context, p *components, s *stores, clients *hub.Hub, migrations publicapi.Migrations, instance string) (net.Addr, error) {
	cfg := a.cfg.Server
	tokens := auth.NewTokenStore(s.conn.Commands(), s.keys.Token, a.cfg.Auth.TokenTTL)
	handler, err := publicapi.New(publicapi.Options{
		Keyring:        a.keys.keyring,
		Tokens:         tokens,
		Publisher:      ingest.NewPublisher(a.newDecoder(), meteredLog{s.log, a.metrics}),
		Streamer:       clients,
		Migrations:     migrations,
		Catalog:        a.catalog,
		Instance:       instance,
		PublicURL:      cfg.PublicURL,
		AllowedOrigins: cfg.AllowedOrigins,
		MaxBody:        int64(cfg.MaxBody),
		Log:            a.log.With("room", "api"),
		Observer:       a.metrics,
	})
	if err != nil {
		return nil, err
	}
	server, err := httpserver.Listen(httpserver.Options{
		Name: "server", Addr: cfg.Listen, Handler: handler, Log: a.log, Grace: cfg.ShutdownGrace,
		CertFile: cfg.TLS.CertFile, KeyFile: cfg.TLS.KeyFile,
		PingInterval: a.cfg.Websocket.PingInterval, PongTimeout: a.cfg.Websocket.PongTimeout,
	})
	if err != nil {
		return nil, err
	}
	p.startComponent(ctx, "API keys", func(ctx context.Context) error {
		return followFiles(ctx, a.log, "API keys", a.keys.reloadFiles, clients.RecheckKeys)
	})
	p.startComponent(ctx, "tokens", tokens.Run)
	a.ready.set(s.conn.Ready)
	p.startComponent(ctx, "memory", func(ctx context.Context) error { return releaseMemoryAfterChurn(ctx, clients) })
	// They stop side by side: nobody may connect any more, and who is connected is told to go.
	p.startComponent(ctx, "clients", runTogether([]task{
		{"public listener", server.Run},
		{"websockets", func(ctx context.Context) error { return a.serveClients(ctx, clients) }},
	}))
	return server.Addr(), nil
}

func (a *App) newDecoder() *ingest.Decoder { return ingest.NewDecoder(a.catalog) }
