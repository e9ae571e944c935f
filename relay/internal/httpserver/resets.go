package httpserver

import (
	"context"
	"net"
	"net/http"
	"net/netip"
	"sync"

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
)

type resetsKey struct{}

// connResets counts the requests that the client of a connection has reset.
type connResets struct {
	conn    net.Conn
	once    sync.Once
	limiter *rate.Limiter // created for the first reset, because most connections have none
}

// add counts a reset, and closes the connection if there were too many.
func (c *connResets) add() {
	c.once.Do(func() { c.limiter = rate.NewLimiter(resetsPerSecond, resetBurst) })
	if !c.limiter.Allow() {
		_ = c.conn.Close()
	}
}

// countResets is the ConnContext function of the http.Server. Trusted proxies have no limit, because they pass on the
// resets of many clients.
func countResets(proxies clientaddr.Proxies) func(context.Context, net.Conn) context.Context {
	return func(ctx context.Context, conn net.Conn) context.Context {
		peer, err := netip.ParseAddrPort(rawConn(withoutTLS(conn)).RemoteAddr().String())
		if err == nil && proxies.Contains(peer.Addr()) {
			return ctx
		}
		return context.WithValue(ctx, resetsKey{}, &connResets{conn: conn})
	}
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
			if resets, ok := r.Context().Value(resetsKey{}).(*connResets); ok && r.Context().Err() != nil {
				resets.add()
			}
		}()
		if r.Context().Err() == nil {
			next.ServeHTTP(w, r)
		}
	})
}
