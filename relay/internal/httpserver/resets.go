package httpserver

import (
	"context"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"time"

	"golang.org/x/time/rate"

	"github.com/hubrelay/hubrelay/relay/internal/clientaddr"
)

const (
	// maxStreams is the maximum number of requests at once on an HTTP/2 connection. net/http queues four times as many
	// whose predecessors were reset and still run.
	maxStreams = 100
	// resetBurst and resetsPerSecond limit how many requests on an HTTP/2 connection its client may reset. A client
	// that resets each request at once would otherwise get around maxStreams (CVE-2023-44487).
	resetBurst      = 200
	resetsPerSecond = 20
	// blockTime is the time without new connections for the address of a connection that was closed for its resets. An
	// attacker would otherwise continue on a new connection.
	blockTime = 10 * time.Second
	// maxBlocked is the maximum number of blocked addresses. More are not blocked.
	maxBlocked = 4096
)

type connKey struct{}

// withConn is the ConnContext function of the http.Server.
func withConn(ctx context.Context, conn net.Conn) context.Context {
	c, ok := rawConn(withoutTLS(conn)).(*limitedConn)
	if !ok {
		return ctx
	}
	return context.WithValue(ctx, connKey{}, c)
}

// limitResets closes an HTTP/2 connection whose client resets too many requests, and skips requests that were reset
// before they began.
func limitResets(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ProtoMajor < 2 {
			next.ServeHTTP(w, r)
			return
		}
		defer func() {
			if c, ok := r.Context().Value(connKey{}).(*limitedConn); ok && r.Context().Err() != nil {
				c.countReset()
			}
		}()
		if r.Context().Err() == nil {
			next.ServeHTTP(w, r)
		}
	})
}

// countReset counts a request that the client has reset. If there were too many, it closes the connection and blocks its
// address for blockTime. Trusted proxies have no limit, because they pass on the resets of many clients.
func (c *limitedConn) countReset() {
	peer, err := netip.ParseAddrPort(c.RemoteAddr().String())
	if err == nil && c.limiter.proxies.Contains(peer.Addr()) {
		return
	}
	c.limiter.mu.Lock()
	if c.resets == nil {
		c.resets = rate.NewLimiter(resetsPerSecond, resetBurst)
	}
	tooMany := !c.resets.Allow()
	if tooMany && err == nil {
		c.limiter.block(clientaddr.Group(peer.Addr()))
	}
	c.limiter.mu.Unlock()
	if tooMany {
		_ = c.Close()
	}
}

// block rejects new connections of an address for blockTime. The caller holds l.mu.
func (l *connLimiter) block(group netip.Prefix) {
	now := time.Now()
	if len(l.blocked) >= maxBlocked {
		maps.DeleteFunc(l.blocked, func(_ netip.Prefix, end time.Time) bool { return !now.Before(end) })
	}
	if len(l.blocked) >= maxBlocked {
		return
	}
	l.blocked[group] = now.Add(blockTime)
	l.blockLog.Do(func() {
		l.log.Warn("too many reset requests, the address is blocked; if it is a proxy, add it to server.trusted_proxies",
			"remote", group, "duration", blockTime)
	})
}

// isBlocked reports whether an address has reset too many requests. The caller holds l.mu.
func (l *connLimiter) isBlocked(peer netip.Addr) bool {
	return len(l.blocked) > 0 && time.Now().Before(l.blocked[clientaddr.Group(peer)])
}
