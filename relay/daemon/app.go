// Package daemon assembles the relay: it opens Redis, starts all components in order and stops them in reverse. It
// is the only package that commands import from the relay.
//
// Only wiring belongs here. Decisions about events, connections or deliveries belong to the packages of these
// components.
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
	"github.com/hubrelay/hubrelay/relay/internal/audit"
	"github.com/hubrelay/hubrelay/relay/internal/auth"
	"github.com/hubrelay/hubrelay/relay/internal/clientaddr"
	"github.com/hubrelay/hubrelay/relay/internal/config"
	"github.com/hubrelay/hubrelay/relay/internal/delivery/notice"
	"github.com/hubrelay/hubrelay/relay/internal/delivery/store"
	"github.com/hubrelay/hubrelay/relay/internal/dispatch"
	"github.com/hubrelay/hubrelay/relay/internal/httpserver"
	"github.com/hubrelay/hubrelay/relay/internal/hub"
	"github.com/hubrelay/hubrelay/relay/internal/ingest"
	"github.com/hubrelay/hubrelay/relay/internal/lease"
	"github.com/hubrelay/hubrelay/relay/internal/metrics"
	"github.com/hubrelay/hubrelay/relay/internal/publicapi"
	"github.com/hubrelay/hubrelay/relay/internal/quota"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
)

// leaseTime is the time after which another node takes over the work of a failed node.
const leaseTime = 10 * time.Second

// Options are the settings of the daemon that come from the program.
type Options struct {
	// Version is shown in metrics and sent to destinations.
	Version string
	// Log must not be nil.
	Log *slog.Logger
	// Sinks are the kinds of sinks that the configuration may use.
	Sinks []relay.SinkKind
	// Driver describes the migration driver. It is nil if migrations are not supported.
	Driver *relay.DriverKind
	// Reload provides changed configurations while the daemon runs. It may be nil.
	Reload *ReloadSource
	// Ready is called once, when everything has started. It may be nil.
	Ready func(Addresses)
}

// Addresses are the addresses of the listeners.
type Addresses struct{ Public, Health, Admin net.Addr }

// Daemon is one relay process.
type Daemon struct {
	cfg            *config.Config
	options        Options
	log            *slog.Logger
	catalog        *relay.Catalog
	keys           *keyLoader
	metrics        *metrics.Metrics
	health         *adminserver.Health
	admin          *adminserver.Admin
	logins         *logins // nil if the admin listener is a unix socket
	ready          readyCheck
	reloadStatus   reloadStatus
	authentication *authentication
	audit          *audit.Log
	accepted       *config.Config // the latest accepted one; only reloadConfig uses it

	modules     modules
	sinks       sinkRegistry
	delivery    *deliveryService // nil until it has started, like the following fields
	notices     *notice.Publisher
	dispatchers []*dispatch.Dispatcher

	store      atomic.Pointer[store.Store] // nil until Redis is connected
	auditStore atomic.Pointer[audit.Store] // nil until Redis is connected, and if Redis keeps no entries
	storedKeys atomic.Pointer[storedKeys]
	operations atomic.Pointer[sinkAdmin]
	sources    atomic.Pointer[sourceManager]
	clients    atomic.Pointer[hub.Hub]
}

// New creates a daemon from a valid configuration. It reads the inventory file, and opens the sinks and the driver, but
// starts nothing. cfg must not be modified afterwards. Invalid values in files are returned as [yamldoc.Problems].
func New(cfg *config.Config, s Options) (*Daemon, error) {
	s.Log = slog.New(redisconn.NewOutageHandler(s.Log.Handler()))
	a := &Daemon{cfg: cfg, accepted: cfg, options: s, log: s.Log, metrics: metrics.New(s.Version)}
	a.reloadStatus.setMetric = a.metrics.Reloaded
	var err error
	if a.catalog, err = relay.NewCatalog(cfg.Notifications.ExtraTopics); err != nil {
		return nil, fmt.Errorf("notifications.extra_topics: %w", err)
	}
	if a.keys, err = newKeys(cfg.Auth.Keys); err != nil {
		return nil, err
	}
	if a.authentication, err = a.newAuthentication(&cfg.Auth); err != nil {
		return nil, err
	}
	if cfg.Admin.Listen != "" {
		if a.logins, err = newLogins(cfg.Admin.Tokens); err != nil {
			return nil, err
		}
	}
	if a.modules, err = newModules(cfg, s, a.metrics); err != nil {
		return nil, err
	}
	a.audit = audit.NewLog(audit.Options{
		File: cfg.Audit.File, HashChain: cfg.Audit.HashChain,
		Dropped: a.metrics.AuditDropped, Log: a.log.With("component", "audit"),
	})
	sinks, err := a.openSinks(cfg.Sinks)
	if err != nil {
		return nil, err
	}
	for _, s := range sinks {
		initMetrics(a.metrics, s)
	}
	warnRateConflicts(a.log, sinks, nil)
	a.sinks.add(sinks...)
	return a, nil
}

// Run runs the daemon until ctx ends, stops it in order and returns nil. If a component fails, Run stops the
// others and returns the error. Run can be called once.
func (a *Daemon) Run(ctx context.Context) error {
	p := newComponents(a.log)
	defer a.closeAllSinks()
	// The health and admin listeners stop last, so probes and metrics show the shutdown.
	err := a.start(ctx, p)
	if err == nil {
		err = p.wait(ctx)
	}
	if ctx.Err() != nil {
		err = nil // an interrupted start is not an error
		a.log.Info("stopping", "grace", a.cfg.Server.ShutdownGrace.String())
	}
	a.stop(p)
	if err == nil {
		a.log.Info("stopped")
	}
	return err
}

// stop first reports that the daemon is not ready, then stops all components. Load balancers see this while the
// public listener still accepts connections.
func (a *Daemon) stop(p *components) {
	if a.health != nil {
		a.health.Drain()
	}
	p.stop(a.cfg.Server.ShutdownGrace + stopMargin)
}

// stopMargin is the time to close Redis and the listeners, in addition to the grace period of running work.
const stopMargin = 5 * time.Second

func (a *Daemon) start(ctx context.Context, p *components) error {
	p.startComponent(ctx, "audit file", a.audit.RunFile)
	health, err := a.startHealth(ctx, p)
	if err != nil {
		return err
	}
	admin, err := a.startAdmin(ctx, p, health)
	if err != nil {
		return err
	}
	s, err := a.openStores(ctx, p)
	if err != nil {
		return err
	}
	a.startAudit(ctx, p, s)
	node, err := joinNode(ctx, p, s.leases)
	if err != nil {
		return err
	}
	cursorKey, err := s.conn.CursorKey(ctx)
	if err != nil {
		return err
	}
	clients := hub.New(a.hubOptions(s, cursorKey))
	a.clients.Store(clients)
	a.metrics.SetQueueFunc(clients.QueueStats)
	store := store.New(s.conn.Commands(), s.keys)
	a.store.Store(store)
	if err := a.startDelivery(ctx, p, s, store, node); err != nil {
		return err
	}
	if err := a.startLog(ctx, p, s, clients); err != nil {
		return err
	}
	a.openAdminAPI(s, store, cursorKey)
	p.startComponent(ctx, "sink statistics", func(ctx context.Context) error {
		return a.updateSinkStats(ctx, s.queues, store)
	})
	instance, err := s.conn.Instance(ctx)
	if err != nil {
		return err
	}
	if err := a.startModules(ctx, p, s, node); err != nil {
		return err
	}
	if err := a.startStoredKeys(ctx, p, s, clients); err != nil {
		return err
	}
	public, err := a.startPublic(ctx, p, s, clients, instance)
	if err != nil {
		return err
	}
	a.startSources(ctx, p, s, instance, node.Name)
	if a.options.Reload != nil {
		p.startComponent(ctx, "configuration", func(ctx context.Context) error { return a.watchConfig(ctx, clients) })
	}
	if a.options.Ready != nil {
		a.options.Ready(Addresses{Public: public, Health: health, Admin: admin})
	}
	return nil
}

// joinNode acquires a node number. The end of ctx interrupts the attempt, but does not release the number: the
// component "node" does that when it stops.
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
		return nil, fmt.Errorf("acquire a node number: %w", err)
	}
	p.startComponent(ctx, "node", func(ctx context.Context) error {
		defer cancel()
		defer node.Leave()
		select {
		case <-ctx.Done():
			return nil
		case <-node.Lost:
			return fmt.Errorf(
				"node %s was taken by another process while Redis was unreachable; restart the daemon to join again",
				node.Name,
			)
		}
	})
	return node, nil
}

// serveClients runs the hub. When ctx ends, it closes the connections within the grace period.
func (a *Daemon) serveClients(ctx context.Context, clients *hub.Hub) error {
	err := clients.Run(ctx)
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), a.cfg.Server.ShutdownGrace)
	defer cancel()
	if closeErr := clients.Close(grace); err == nil {
		err = closeErr
	}
	return err
}

func (a *Daemon) startPublic(
	ctx context.Context, p *components, s *stores, clients *hub.Hub, instance string,
) (net.Addr, error) {
	cfg := a.cfg.Server
	networks, err := clientaddr.ParseNetworks(cfg.TrustedProxies)
	if err != nil {
		return nil, fmt.Errorf("server.trusted_proxies: %w", err)
	}
	proxies := clientaddr.Proxies{Networks: networks, Header: cfg.TrustedProxiesHeader}
	tokens := auth.NewTokenStore(auth.TokenOptions{
		Client: s.conn.Commands(), Key: s.keys.Token, Changes: s.keys.TokenChanges(),
		TTL: a.cfg.Auth.TokenTTL, StreamTTL: a.cfg.Auth.StreamTTL,
	})
	handler, err := publicapi.New(publicapi.Options{
		Authenticator:  a.authentication.authenticator,
		Failures:       a.authentication.failures,
		Tokens:         tokens,
		Publisher:      a.newPublisher(s),
		Quotas:         a.newRequestQuotas(s),
		CheckStorage:   s.monitor.Check,
		Streams:        clients,
		Routes:         a.modules.publicRoutes(),
		Catalog:        a.catalog,
		Instance:       instance,
		PublicURL:      cfg.PublicURL,
		AllowedOrigins: cfg.AllowedOrigins,
		TrustedProxies: proxies,
		MaxBody:        int64(cfg.MaxBody),
		MaxBodyMemory:  int64(cfg.BodyMemory),
		MinBodyRate:    int64(cfg.BodyMinRate),
		Log:            a.log.With("component", "api"),
		Observer:       a.metrics,
		Audit:          a.audit,
	})
	if err != nil {
		return nil, err
	}
	server, err := httpserver.Listen(httpserver.Options{
		Name: "server", Addr: cfg.Listen, Handler: handler, Log: a.log, Grace: cfg.ShutdownGrace,
		CertFile: cfg.TLS.CertFile, KeyFile: cfg.TLS.KeyFile, ClientCAFile: a.cfg.Auth.MTLS.CAFile,
		TrustedProxies: proxies,
		PingInterval:   a.cfg.Websocket.PingInterval, PongTimeout: a.cfg.Websocket.PongTimeout,
		ConnLimits: connLimits(cfg, openFiles()), ConnObserver: a.metrics.Listener("server"),
	})
	if err != nil {
		return nil, err
	}
	p.startComponent(ctx, "API keys", func(ctx context.Context) error {
		return pollFiles(ctx, a.log, "API keys", a.keys.reloadFiles, func() {
			a.recordSecretFiles("API keys")
			clients.RecheckKeys()
		})
	})
	p.startComponent(ctx, "tokens", tokens.Run)
	a.ready.set(s.ready)
	p.startComponent(ctx, "memory release", func(ctx context.Context) error {
		return releaseMemoryAfterChurn(ctx, clients)
	})
	// They stop concurrently: the listener accepts no new clients while the hub closes the connected ones.
	p.startComponent(ctx, "clients", runTogether([]task{
		{"public listener", server.Run},
		{"websockets", func(ctx context.Context) error { return a.serveClients(ctx, clients) }},
	}))
	return server.Addr(), nil
}

func (a *Daemon) newPublisher(s *stores) *ingest.Publisher {
	return ingest.NewPublisher(ingest.PublisherOptions{
		Decoder: a.newDecoder(), Log: s.log, Quotas: a.newQuotas(s), CheckRoom: s.monitor.Check,
		Accepted: a.metrics.Accepted,
	})
}

func (a *Daemon) newQuotas(s *stores) *quota.Quotas {
	limit := func(q config.Quota) quota.Limit {
		return quota.Limit{
			PerSecond: quota.Amount{Count: int64(q.Notifications), Bytes: int64(q.Bytes)}, Burst: q.Burst,
		}
	}
	return quota.NewQuotas(quota.Options{
		Key: limit(a.cfg.Quotas.Key), Account: limit(a.cfg.Quotas.Account), Address: limit(a.cfg.Quotas.IP),
		Store: quota.NewRedisStore(s.conn.Commands(), s.keys), Rejected: a.metrics.QuotaExceeded("publish", quota.KindKey, quota.KindAccount, quota.KindAddress),
	})
}

func (a *Daemon) newRequestQuotas(s *stores) *quota.Quotas {
	limit := quota.Limit{
		PerSecond: quota.Amount{Count: int64(a.cfg.Quotas.Requests.PerSecond)}, Burst: a.cfg.Quotas.Requests.Burst,
	}
	return quota.NewQuotas(quota.Options{
		Name: "requests", Key: limit, Account: limit,
		Store: quota.NewRedisStore(s.conn.Commands(), s.keys), Rejected: a.metrics.QuotaExceeded("request", quota.KindKey, quota.KindAccount),
	})
}

func (a *Daemon) newDecoder() *ingest.Decoder { return ingest.NewDecoder(a.catalog) }
