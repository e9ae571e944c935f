// Package daemon assembles the relay: it opens Redis, starts all components in order and stops them in reverse. It
// is the only package that commands import from the relay.
//
// Only wiring belongs here. Decisions about events, connections or deliveries belong to the packages of these
// components. Daemon.start shows what starts and stops when.
package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"time"

	"github.com/hubrelay/hubrelay/internal/streamid"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/adminserver"
	"github.com/hubrelay/hubrelay/relay/internal/audit"
	"github.com/hubrelay/hubrelay/relay/internal/auth/keymanager"
	"github.com/hubrelay/hubrelay/relay/internal/clients"
	"github.com/hubrelay/hubrelay/relay/internal/config"
	"github.com/hubrelay/hubrelay/relay/internal/delivery"
	"github.com/hubrelay/hubrelay/relay/internal/delivery/notice"
	"github.com/hubrelay/hubrelay/relay/internal/eventlog"
	"github.com/hubrelay/hubrelay/relay/internal/history"
	"github.com/hubrelay/hubrelay/relay/internal/ingest"
	"github.com/hubrelay/hubrelay/relay/internal/lease"
	"github.com/hubrelay/hubrelay/relay/internal/lifecycle"
	"github.com/hubrelay/hubrelay/relay/internal/metrics"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
	"github.com/hubrelay/hubrelay/relay/internal/source/sourcemanager"
	"github.com/hubrelay/hubrelay/relay/internal/status"
)

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
	// Stdout replaces standard output for the audit log. It may be nil.
	Stdout io.Writer
	// Ready is called once, when everything has started. It may be nil.
	Ready func(Addresses)
}

// Addresses are the addresses of the listeners.
type Addresses struct{ Public, Health, Admin net.Addr }

// Daemon is one relay process. Its fields need no Redis.
type Daemon struct {
	cfg            *config.Config
	options        Options
	log            *slog.Logger
	catalog        *relay.Catalog
	keys           *keymanager.Keys
	metrics        *metrics.Metrics
	adminTokens    *adminserver.TokenLoader // nil if the admin listener is a unix socket
	authentication *authentication
	audit          *audit.Log
	modules        modules
	sinks          *delivery.Sinks
	configs        status.Configs
	reloads        status.Reloads
}

// New creates a daemon from a valid configuration. It reads the inventory file, and opens the sinks and the driver, but
// starts nothing. cfg must not be modified afterwards. Invalid values in files are returned as [yamldoc.Problems].
func New(cfg *config.Config, o Options) (*Daemon, error) {
	o.Log = slog.New(redisconn.NewOutageHandler(o.Log.Handler()))
	d := &Daemon{cfg: cfg, options: o, log: o.Log, metrics: metrics.New(o.Version)}
	d.reloads.SetMetric = d.metrics.Reloaded
	d.addConfig(cfg)
	var err error
	if d.catalog, err = relay.NewCatalog(cfg.Notifications.ExtraTopics); err != nil {
		return nil, fmt.Errorf("notifications.extra_topics: %w", err)
	}
	if d.keys, err = keymanager.NewKeys(configuredKeys(cfg.Auth.Keys)); err != nil {
		return nil, err
	}
	if d.authentication, err = d.newAuthentication(&cfg.Auth); err != nil {
		return nil, err
	}
	if cfg.Admin.Listen != "" {
		if d.adminTokens, err = adminserver.NewTokenLoader(configuredTokens(cfg.Admin.Tokens)); err != nil {
			return nil, err
		}
	}
	if d.modules, err = newModules(cfg, o, d.metrics); err != nil {
		return nil, err
	}
	d.audit = audit.NewLog(audit.Options{
		File: cfg.Audit.File, HashChain: cfg.Audit.HashChain, Stdout: o.Stdout,
		Dropped: d.metrics.AuditDropped, Log: d.log.With("component", "audit"),
	})
	if d.sinks, err = delivery.OpenSinks(cfg.Sinks, delivery.SinkOptions{
		Kinds: o.Sinks, Catalog: d.catalog, Dir: cfg.Dir(), Version: o.Version, Metrics: d.metrics, Logger: d.log,
	}); err != nil {
		return nil, err
	}
	return d, nil
}

// Run runs the daemon until ctx ends, stops it in order and returns nil. If the start of a component or
// the component itself fails, Run stops the others and returns the error. Run can be called once.
func (d *Daemon) Run(ctx context.Context) error {
	group := lifecycle.NewGroup(d.log)
	health := d.newHealth()
	defer d.closeSinks()
	err := d.start(ctx, group, health)
	if err == nil {
		err = group.Wait(ctx)
	}
	if ctx.Err() != nil {
		if err != nil && !errors.Is(err, context.Canceled) {
			d.log.Warn("a component failed while the relay was stopping", "error", err)
		}
		err = nil // an interrupted start is not an error
		d.log.Info("stopping", "grace", d.cfg.Server.ShutdownGrace.String())
	}
	d.stop(group, health)
	if err == nil {
		d.log.Info("stopped")
	}
	return err
}

// stop first reports that the daemon is not ready, then stops all components. Load balancers see this while the
// public listener still accepts connections.
func (d *Daemon) stop(group *lifecycle.Group, health *adminserver.Health) {
	health.Drain()
	group.StopInReverse(d.cfg.Server.ShutdownGrace+stopMargin, stopMargin)
}

// stopMargin is the time to close Redis and the listeners, in addition to the grace period of running work.
const stopMargin = 5 * time.Second

// start starts all components. Each may use the ones before it, and stops before they do. Probes and metrics show
// the shutdown, because only the audit file stops after the health listener.
func (d *Daemon) start(ctx context.Context, group *lifecycle.Group, health *adminserver.Health) error {
	var addresses Addresses
	var err error
	group.Start(ctx, "audit file", d.audit.RunFile)
	if addresses.Health, err = d.startHealthListener(ctx, group, health); err != nil {
		return err
	}

	conn, err := d.connectRedis(ctx, group)
	if err != nil {
		return err
	}
	s := d.newStores(conn)
	group.Start(ctx, "storage monitor", s.monitor.Run)
	group.Start(ctx, "audit log", func(ctx context.Context) error { return d.audit.RunStore(ctx, s.audit) })
	node, err := joinNode(ctx, group, s.leases)
	if err != nil {
		return err
	}
	identity, err := conn.Identity(ctx)
	if err != nil {
		return err
	}
	group.Start(ctx, "identity", func(ctx context.Context) error { return conn.KeepIdentity(ctx, identity, d.log) })

	recorder := d.startHistory(ctx, group, s, node.Name)
	streamServer := clients.New(d.clientOptions(s, identity.CursorKey, recorder))
	d.metrics.SetQueueFunc(streamServer.QueueStats)
	notices := notice.NewPublisher(notice.Options{
		Retries: &s.deliveries.Retries, States: &s.deliveries.States, NewID: d.newDecoder().NewID,
		Dropped: func(sink string) { d.metrics.Dropped(sink, 1) }, Log: d.log.With("component", "delivery"),
	})
	nodes := status.NewNodes(s.leases, node.Name)
	deliveries, err := d.newDeliveries(s, nodes, node, streamServer, notices, identity.CursorKey, recorder)
	if err != nil {
		return err
	}
	deliveries.Start(ctx, group)
	if err := d.startLog(ctx, group, s, streamServer, deliveries); err != nil {
		return err
	}
	if err := d.startModules(ctx, group, s, node); err != nil {
		return err
	}
	keys, err := d.startKeyManager(ctx, group, s, streamServer)
	if err != nil {
		return err
	}

	sources := sourcemanager.New(d.cfg.Sources, sourcemanager.Options{
		Store: guardedSources{s.sources, s}, Leases: s.leases, Notices: notices, Decoder: d.newDecoder(),
		Metrics: d.metrics, Log: d.log, Version: d.options.Version, RelayID: identity.RelayID, Node: node.Name,
	})
	events := history.NewSearcher(s.log, s.keys)
	host, _ := os.Hostname() // for operators only
	reporter := status.NewReporter(status.Options{
		Host: host, Version: d.options.Version, StartedAt: time.Now(),
		Log: s.log, Nodes: nodes, StreamServer: streamServer, Storage: s.monitor, Configs: &d.configs, CheckReady: s.checkReady,
		ConfigWarning: d.reloads.OperatorWarning,
		ActiveSinks:   deliveries.ActiveSinks, ActiveSinksChanged: deliveries.ActiveSinksChanged(),
		FailedSinks: deliveries.FailedSinks,
	})
	group.Start(ctx, "node status", reporter.Run)
	group.Start(ctx, "sources", sources.Run)
	addresses.Admin, err = d.startAdminListener(ctx, group, addresses.Health, adminserver.Options{
		Sinks: sinks{deliveries, nodes}, Sources: sources, Quarantine: d.newQuarantine(s), Connections: streamServer, Keys: keys,
		Access: d.newExplainer(s, events), Events: events,
		Accounts: accounts{d.cfg.Redis.URL, s, deliveries}, AuditLog: s.audit, Node: node.Name, Jobs: d.modules.migrations.AdminJobs(),
		Status: reporter, AwaitReplicas: conn.AwaitReplicas,
	})
	if err != nil {
		return err
	}
	if addresses.Public, err = d.startPublicListener(ctx, group, s, streamServer, identity.RelayID); err != nil {
		return err
	}
	if d.options.Reload != nil {
		d.startReload(ctx, group, streamServer, deliveries, sources)
	}

	health.SetReady(s.checkReady)
	if d.options.Ready != nil {
		d.options.Ready(addresses)
	}
	return nil
}

// joinNode acquires a node number. The end of ctx interrupts the attempt, but does not release the number: the
// component "node" does that when it stops.
func joinNode(ctx context.Context, group *lifecycle.Group, leases *lease.Manager) (*lease.Node, error) {
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
	group.Start(ctx, "node", func(ctx context.Context) error {
		defer cancel()
		defer node.Leave()
		select {
		case <-ctx.Done():
			return nil
		case <-node.Lost:
			return fmt.Errorf(
				"node %s was taken by another process while Redis was unreachable; restart the node to join again",
				node.Name,
			)
		}
	})
	return node, nil
}

// newDeliveries creates the service that delivers to the sinks.
func (d *Daemon) newDeliveries(
	s *stores, nodes *status.Nodes, node *lease.Node, streamServer *clients.Server, notices *notice.Publisher,
	cursorKey streamid.CursorKey, recorder *history.Recorder,
) (*delivery.Service, error) {
	var receivers func(relay.Notification, time.Time) []string
	if d.cfg.History.Clients {
		receivers = streamServer.Receivers
	}
	return delivery.New(delivery.Options{
		Sinks: d.sinks, Conn: s.conn, Log: s.log, Queues: s.queues, Deliveries: s.deliveries, Leases: s.leases,
		Nodes: nodes, Node: node.Name, Notices: notices, History: recorder, HistoryStore: s.history, Receivers: receivers,
		Decoder: d.newDecoder(), Cursors: streamid.NewCursors(cursorKey),
		Retention:  func() eventlog.Retention { return d.logRetention(s.monitor.MaxMemory()) },
		Memory:     s.monitor,
		OnDisabled: d.recordDisabledSink, Grace: d.cfg.Server.ShutdownGrace, Logger: d.log,
	})
}

// closeSinks closes the sinks after deliveries have stopped. A sink with a running attempt stays open and is logged.
func (d *Daemon) closeSinks() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if err := d.sinks.Close(ctx); err != nil {
		d.log.Warn("sinks did not close cleanly", "error", err)
	}
}

func (d *Daemon) newDecoder() *ingest.Decoder { return ingest.NewDecoder(d.catalog) }
