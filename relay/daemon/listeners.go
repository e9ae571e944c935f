package daemon

import (
	"context"
	"net"
	"time"

	"github.com/hubrelay/hubrelay/internal/adminsocket"
	"github.com/hubrelay/hubrelay/internal/filewatch"
	"github.com/hubrelay/hubrelay/relay/internal/adminserver"
	"github.com/hubrelay/hubrelay/relay/internal/httpserver"
	"github.com/hubrelay/hubrelay/relay/internal/lifecycle"
)

// requestGrace is the time for running requests of the health and admin listeners at shutdown.
const requestGrace = time.Second

func (d *Daemon) newHealth() *adminserver.Health {
	return adminserver.NewHealth(adminserver.HealthOptions{
		Metrics: d.metrics, Warning: d.reloads.PublicWarning, Listen: d.cfg.Health.Listen,
	})
}

func (d *Daemon) startHealthListener(
	ctx context.Context, group *lifecycle.Group, health *adminserver.Health,
) (net.Addr, error) {
	server, err := httpserver.Listen(httpserver.Options{
		Name: "health", Addr: d.cfg.Health.Listen, Handler: health, Log: d.log, Grace: requestGrace,
		ConnLimits: httpserver.ConnLimits{Total: maxHealthConns}, ConnObserver: d.metrics.Listener("health"),
	})
	if err != nil {
		return nil, err
	}
	group.Start(ctx, "health listener", server.Run)
	return server.Addr(), nil
}

// startAdminListener listens on admin.listen with tokens, or on a unix socket without tokens. o has the components that
// the admin API controls.
func (d *Daemon) startAdminListener(
	ctx context.Context, group *lifecycle.Group, health net.Addr, o adminserver.Options,
) (net.Addr, error) {
	cfg := d.cfg.Admin
	o.Listen, o.Relay, o.Log, o.Audit = cfg.Listen, d.cfg.Redis.Identity(), d.log, d.audit
	o.Authenticator, o.Routes = new(adminserver.SocketPeer), d.modules.adminRoutes()
	o.Catalog, o.Version, o.ConfigWarning = d.catalog, d.options.Version, d.reloads.OperatorWarning
	listener := httpserver.Options{
		Name: "admin", Addr: cfg.Listen, CertFile: cfg.TLS.CertFile, KeyFile: cfg.TLS.KeyFile, Log: d.log,
		Grace: requestGrace, ConnLimits: httpserver.ConnLimits{Total: adminserver.MaxConnections},
		ConnObserver: d.metrics.Listener("admin"),
	}
	if d.adminTokens != nil {
		o.Sessions = adminserver.NewSessions(d.adminTokens.Tokens())
		o.Authenticator = o.Sessions
	} else {
		socket, err := adminsocket.Listen(d.cfg.Redis.DataDir, health.String(), d.log)
		if err != nil {
			return nil, err
		}
		listener.Listener, listener.CertFile, listener.KeyFile = socket, "", ""
	}
	listener.Handler = adminserver.New(o)
	server, err := httpserver.Listen(listener)
	if err != nil {
		return nil, err
	}
	group.Start(ctx, "admin listener", server.Run)
	if d.adminTokens != nil {
		group.Start(ctx, "admin tokens", func(ctx context.Context) error {
			return filewatch.PollSecrets(ctx, d.log, "admin tokens", d.adminTokens.ReloadFiles,
				func() { d.recordSecretFiles("admin tokens") })
		})
	}
	return server.Addr(), nil
}
