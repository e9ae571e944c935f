package daemon

import (
	"context"
	"fmt"
	"net"

	"github.com/hubrelay/hubrelay/internal/filewatch"
	"github.com/hubrelay/hubrelay/relay/internal/clientaddr"
	"github.com/hubrelay/hubrelay/relay/internal/clients"
	"github.com/hubrelay/hubrelay/relay/internal/config"
	"github.com/hubrelay/hubrelay/relay/internal/httpserver"
	"github.com/hubrelay/hubrelay/relay/internal/ingest"
	"github.com/hubrelay/hubrelay/relay/internal/lifecycle"
	"github.com/hubrelay/hubrelay/relay/internal/publicapi"
	"github.com/hubrelay/hubrelay/relay/internal/quota"
)

// serveClients runs the stream server. When ctx ends, it closes the connections within the grace period.
func (d *Daemon) serveClients(ctx context.Context, streamServer *clients.Server) error {
	err := streamServer.Run(ctx)
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), d.cfg.Server.ShutdownGrace)
	defer cancel()
	if closeErr := streamServer.Close(grace); err == nil {
		err = closeErr
	}
	return err
}

// startPublicListener starts the public API with its tokens, and the clients.
func (d *Daemon) startPublicListener(
	ctx context.Context, group *lifecycle.Group, s *stores, streamServer *clients.Server, relayID string,
) (net.Addr, error) {
	cfg := d.cfg.Server
	networks, err := clientaddr.ParseNetworks(cfg.TrustedProxies)
	if err != nil {
		return nil, fmt.Errorf("server.trusted_proxies: %w", err)
	}
	proxies := clientaddr.Proxies{Networks: networks, Header: cfg.TrustedProxiesHeader}
	limits := connLimits(cfg, openFiles())
	handler, err := publicapi.New(publicapi.Options{
		Authenticator:  d.authentication.authenticator,
		Failures:       d.authentication.failures,
		Tokens:         s.tokens,
		Publisher:      d.newPublisher(s),
		Quotas:         d.newRequestQuotas(s),
		TakeRoom:       s.monitor.TakeRoomForRequest,
		Streams:        streamServer,
		Routes:         d.modules.publicRoutes(),
		Catalog:        d.catalog,
		RelayID:        relayID,
		PublicURL:      cfg.PublicURL,
		AllowedOrigins: cfg.AllowedOrigins,
		TrustedProxies: proxies,
		MaxBody:        int64(cfg.MaxBody),
		MaxBodyMemory:  int64(cfg.BodyMemory),
		MaxBodies:      limits.Total / 2, // the rest is for other requests
		MinBodyRate:    int64(cfg.BodyMinRate),
		Log:            d.log.With("component", "api"),
		Observer:       d.metrics,
		Audit:          d.audit,
	})
	if err != nil {
		return nil, err
	}
	server, err := httpserver.Listen(httpserver.Options{
		Name: "server", Addr: cfg.Listen, Handler: handler, Log: d.log, Grace: cfg.ShutdownGrace,
		CertFile: cfg.TLS.CertFile, KeyFile: cfg.TLS.KeyFile, ClientCAFile: d.cfg.Auth.MTLS.CAFile,
		TrustedProxies: proxies,
		PingInterval:   d.cfg.Websocket.PingInterval, PongTimeout: d.cfg.Websocket.PongTimeout,
		ConnLimits: limits, ConnObserver: d.metrics.Listener("server"),
	})
	if err != nil {
		return nil, err
	}
	group.Start(ctx, "API keys", func(ctx context.Context) error {
		return filewatch.PollSecrets(ctx, d.log, "API keys", d.keys.ReloadFiles, func() {
			d.recordSecretFiles("API keys")
			streamServer.RecheckKeys()
		})
	})
	group.Start(ctx, "tokens", s.tokens.Run)
	group.Start(ctx, "memory release", streamServer.ReleaseMemory)
	// They stop concurrently: the listener accepts no new clients while the stream server closes the connected ones.
	serving := lifecycle.NewGroup(d.log)
	serving.Start(ctx, "public listener", server.Run)
	serving.Start(ctx, "stream server", func(ctx context.Context) error { return d.serveClients(ctx, streamServer) })
	group.Start(ctx, "clients", serving.Run)
	return server.Addr(), nil
}

func (d *Daemon) newPublisher(s *stores) *ingest.Publisher {
	return ingest.NewPublisher(ingest.PublisherOptions{
		Decoder: d.newDecoder(), Log: s.log, Quotas: d.newQuotas(s), Room: s.monitor, IsLagging: s.log.IsLagging,
		HasReadOthers: s.log.HasReadOthers, Accepted: d.metrics.Accepted,
	})
}

func (d *Daemon) newQuarantine(s *stores) *ingest.Quarantine {
	return &ingest.Quarantine{Store: s.inbox, Decoder: d.newDecoder(), CheckRoom: s.monitor.Check}
}

func (d *Daemon) newQuotas(s *stores) *quota.Quotas {
	limit := func(q config.Quota) quota.Limit {
		return quota.Limit{
			PerSecond: quota.Amount{Count: int64(q.Notifications), Bytes: int64(q.Bytes)}, Burst: q.Burst,
		}
	}
	return quota.NewQuotas(quota.Options{
		Key: limit(d.cfg.Quotas.Key), Account: limit(d.cfg.Quotas.Account), Address: limit(d.cfg.Quotas.IP),
		Store:    quota.NewRedisStore(s.conn.Commands(), s.keys),
		Rejected: d.metrics.QuotaExceeded("publish", quota.KindKey, quota.KindAccount, quota.KindAddress),
	})
}

func (d *Daemon) newRequestQuotas(s *stores) *quota.Quotas {
	limit := quota.Limit{
		PerSecond: quota.Amount{Count: int64(d.cfg.Quotas.Requests.PerSecond)}, Burst: d.cfg.Quotas.Requests.Burst,
	}
	return quota.NewQuotas(quota.Options{
		Name: "requests", Key: limit, Account: limit,
		Store:    quota.NewRedisStore(s.conn.Commands(), s.keys),
		Rejected: d.metrics.QuotaExceeded("request", quota.KindKey, quota.KindAccount),
	})
}
