package daemon

import (
	"context"
	"net"
	"time"

	"github.com/hubrelay/hubrelay/internal/adminsocket"
	"github.com/hubrelay/hubrelay/relay/internal/adminserver"
	"github.com/hubrelay/hubrelay/relay/internal/httpserver"
)

// requestGrace is the time for running requests of the health and admin listeners at shutdown.
const requestGrace = time.Second

func (a *Daemon) startHealth(ctx context.Context, p *components) (net.Addr, error) {
	a.health = adminserver.NewHealth(adminserver.HealthOptions{
		Metrics: a.metrics, Ready: a.ready.check, Warning: a.reloadStatus.publicWarning, Listen: a.cfg.Health.Listen,
	})
	server, err := httpserver.Listen(httpserver.Options{
		Name: "health", Addr: a.cfg.Health.Listen, Handler: a.health, Log: a.log, Grace: requestGrace,
		ConnLimits: httpserver.ConnLimits{Total: maxOperatorConns}, ConnObserver: a.metrics.Listener("health"),
	})
	if err != nil {
		return nil, err
	}
	p.startComponent(ctx, "health listener", server.Run)
	return server.Addr(), nil
}

// startAdmin listens on admin.listen with tokens, or on a unix socket without tokens.
func (a *Daemon) startAdmin(ctx context.Context, p *components, health net.Addr) (net.Addr, error) {
	cfg := a.cfg.Admin
	handler := adminserver.Options{
		Listen: cfg.Listen, Relay: a.cfg.Redis.Identity(), Authenticator: new(adminserver.SocketPeer), Log: a.log,
		Sinks: a.adminSinks, Sources: a.adminSources, Connections: a.adminConnections, Routes: a.modules.adminRoutes(),
		ConfigWarning: a.reloadStatus.operatorWarning, Audit: a.audit, AuditLog: a.adminAudit, Keys: a.openKeys,
		Accounts: a.openAccounts,
	}
	listener := httpserver.Options{
		Name: "admin", Addr: cfg.Listen, CertFile: cfg.TLS.CertFile, KeyFile: cfg.TLS.KeyFile, Log: a.log,
		Grace: requestGrace, ConnLimits: httpserver.ConnLimits{Total: maxOperatorConns},
		ConnObserver: a.metrics.Listener("admin"),
	}
	if a.logins != nil {
		handler.Authenticator = &a.logins.tokens
	} else {
		socket, err := adminsocket.Listen(a.cfg.Redis.DataDir, health.String(), a.log)
		if err != nil {
			return nil, err
		}
		listener.Listener, listener.CertFile, listener.KeyFile = socket, "", ""
	}
	a.admin = adminserver.New(handler)
	listener.Handler = a.admin
	server, err := httpserver.Listen(listener)
	if err != nil {
		return nil, err
	}
	p.startComponent(ctx, "admin listener", server.Run)
	if a.logins != nil {
		p.startComponent(ctx, "admin tokens", func(ctx context.Context) error {
			return pollFiles(ctx, a.log, "admin tokens", a.logins.reread,
				func() { a.recordSecretFiles("admin tokens") })
		})
	}
	return server.Addr(), nil
}
