package httpserver

import (
	"context"
	"net"
	"net/http"
	"net/netip"

	"golang.org/x/time/rate"
)

const (
	// maxStreams is the maximum number of requests at once on an HTTP/2 connection. net/http queues four times as many
	// whose predecessors were reset and still run.
	maxStreams = 100
	// resetBurst and resetsPerSecond limit how many requests on an HTTP/2 connection its client may reset. A client
	// that resets each request at once would otherwise get around maxStreams (CVE-2023-44487).
	resetBurst      = 200
	resetsPerSecond = 20
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

// countReset counts a request that the client has reset, and closes the connection if there were too many. Trusted
// proxies have no limit, because they pass on the resets of many clients.
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
	c.limiter.mu.Unlock()
	if tooMany {
		_ = c.Close()
	}
}
