package httpserver

import (
	"context"
	"net"
	"net/http"
	"strconv"
	"time"

	"golang.org/x/time/rate"

	"github.com/hubrelay/hubrelay/relay"
)

const (
	// maxStreams is the maximum number of requests at once on an HTTP/2 connection. net/http queues four times as many
	// whose predecessors were reset and still run.
	maxStreams = 100
	// connBuffer and streamBuffer limit the unread bodies of an HTTP/2 connection and of a request on it, in bytes.
	connBuffer, streamBuffer = 256 << 10, 128 << 10
	// maxFrame is the maximum size of an HTTP/2 frame in bytes, the smallest that RFC 9113 allows. Each connection keeps a
	// buffer as large as its largest frame.
	maxFrame = 16 << 10
	// maxHeaderFields limits the header fields of a request. Each takes about 100 bytes besides its text.
	maxHeaderFields = 100
	// maxUnfinished limits the HTTP/1 connections with an unfinished header of more than unfinishedBytes. A header of many
	// fields takes up to 400 KiB. If there are more, the oldest of the busiest address is closed.
	maxUnfinished, unfinishedBytes = 256, 1 << 10
	// maxRequests and maxGroupRequests limit the HTTP/2 requests in progress, in total and per address, without event
	// streams. A client that reads no responses would otherwise keep a goroutine and up to 16 KiB of header for each.
	// HTTP/1 needs no such limit, because each request holds a connection. At the total limit, the address with the most
	// requests makes room, so a few addresses cannot lock out the others.
	maxRequests, maxGroupRequests = 4000, 400
	// responseTime is the time within which a client must read the response to a request that called EndSoon.
	responseTime = 10 * time.Second
)

type connKey struct{}

// withConn is the ConnContext function of the http.Server.
func withConn(ctx context.Context, conn net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, conn)
}

// limitedConnOfRequest returns the counted connection of a request. It may return nil.
func limitedConnOfRequest(ctx context.Context) *limitedConn {
	conn, _ := ctx.Value(connKey{}).(net.Conn)
	return limitedConnOf(conn)
}

// RequestConn returns the connection of a request, below TLS. It returns nil if ctx is not the context of a request that a
// [Server] received.
func RequestConn(ctx context.Context) net.Conn {
	if c := limitedConnOfRequest(ctx); c != nil {
		return c.Conn
	}
	return nil
}

type requestKey struct{}

// http2Request is an HTTP/2 request in progress. connLimiter.mu guards its fields.
type http2Request struct {
	conn            *limitedConn
	counted, ending bool
}

// rejectManyFields rejects requests with too many header fields.
func rejectManyFields(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		count := 0
		for _, values := range r.Header {
			count += len(values)
		}
		if count > maxHeaderFields {
			clear(r.Header) // otherwise it stays in memory until the client has read the response
			EndSoon(w, r)
			w.Header().Set("Connection", "close")
			WriteError(w, r, relay.NewError(relay.CodeTooLarge,
				"the request has more than "+strconv.Itoa(maxHeaderFields)+" header fields"))
			return
		}
		next.ServeHTTP(w, r)
	})
}

// trackRequests marks connections as busy, limits the HTTP/2 requests in progress, closes an HTTP/2 connection whose client
// resets too many requests, and skips requests that were reset before they began.
func trackRequests(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := limitedConnOfRequest(r.Context())
		switch {
		case c == nil:
			next.ServeHTTP(w, r)
		case r.ProtoMajor < 2:
			c.limiter.mu.Lock()
			c.limiter.beginHandler(c)
			c.limiter.mu.Unlock()
			next.ServeHTTP(w, r)
		default:
			c.serveHTTP2(next, w, r)
		}
	})
}

func (c *limitedConn) serveHTTP2(next http.Handler, w http.ResponseWriter, r *http.Request) {
	q := &http2Request{conn: c}
	isWithinLimits := q.beginRequest()
	defer func() {
		if tooManyResets := q.endRequest(r.Context().Err() != nil); tooManyResets {
			_ = c.Close()
		}
	}()
	switch {
	case r.Context().Err() != nil: // reset before it began
	case !isWithinLimits:
		// Without a body, the response needs no flow control window, so it ends at once.
		w.Header().Set("Retry-After", "1")
		w.Header().Set("Content-Length", "0")
		w.WriteHeader(http.StatusServiceUnavailable)
	default:
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), requestKey{}, q)))
	}
}

// beginRequest reports whether the request is within the limits.
func (h *http2Request) beginRequest() bool {
	c, l := h.conn, h.conn.limiter
	l.mu.Lock()
	defer l.mu.Unlock()
	c.handlers++
	c.isHTTP2 = true
	if c.removed {
		l.setOrphans(c, max(c.orphans-1, 0))
	} else {
		l.setWaiting(c, max(c.waiting-1, 0))
	}
	l.beginHandler(c)
	if c.removed { // such as by closeBusiest
		return false
	}
	ofGroup := l.requestsOfGroup[c.group]
	if !c.isProxy && ofGroup >= maxGroupRequests || l.requests >= maxRequests && !l.closeBusiest(ofGroup+1) {
		l.busyLog.Do(func() {
			l.log.Warn("HTTP/2 requests are rejected, too many are in progress; if the client is a proxy, add it to "+
				"server.trusted_proxies", "request_count", l.requests, "address", c.group)
		})
		return false
	}
	h.counted = true
	l.countRequests(c, 1)
	return true
}

// countRequests changes the number of requests of a connection. The caller holds l.mu.
func (l *connLimiter) countRequests(c *limitedConn, delta int) {
	l.requests += delta
	c.requests += delta
	if c.isProxy {
		return
	}
	if l.busyConns[c] = struct{}{}; c.requests == 0 {
		delete(l.busyConns, c)
	}
	if l.requestsOfGroup[c.group] += delta; l.requestsOfGroup[c.group] == 0 {
		delete(l.requestsOfGroup, c.group)
	}
}

// closeBusiest closes the connection with the most requests of the address with the most requests, if that address has
// more than minimum. It reports whether a connection was closed. The caller holds l.mu.
func (l *connLimiter) closeBusiest(minimum int) bool {
	var busiest *limitedConn
	for c := range l.busyConns {
		ofGroup := l.requestsOfGroup[c.group]
		if ofGroup > minimum || busiest != nil && ofGroup == minimum && c.requests > busiest.requests {
			busiest, minimum = c, ofGroup
		}
	}
	if busiest == nil {
		return false
	}
	l.busyLog.Do(func() {
		l.log.Warn("connection with the most HTTP/2 requests was closed, too many are in progress",
			"request_count", l.requests, "address", busiest.group)
	})
	l.countRequests(busiest, -busiest.requests)
	l.remove(busiest)
	_ = busiest.Conn.Close() // its handlers end with an error
	l.observer.ConnectionEvicted()
	return true
}

// endRequest ends a request that the client may have reset. After too many resets it blocks the address for blockTime, and
// the caller must close the connection. Trusted proxies have no limit of resets, because they pass on the resets of many clients.
func (h *http2Request) endRequest(reset bool) (tooManyResets bool) {
	c, l := h.conn, h.conn.limiter
	l.mu.Lock()
	defer l.mu.Unlock()
	h.leaveLimits()
	c.handlers--
	if h.ending {
		c.ending--
	}
	if !reset {
		return false
	}
	if c.handlers == 0 {
		l.setIdle(c, true) // net/http may have reported it before this handler began
	}
	if c.isProxy {
		return false
	}
	if c.resets == nil {
		c.resets = rate.NewLimiter(resetsPerSecond, resetBurst)
	}
	if c.resets.Allow() {
		return false
	}
	if c.group.IsValid() {
		l.blockAddress(c.group)
	}
	return true
}

// leaveLimits ends the count of a request. It may be called twice. The caller holds connLimiter.mu.
func (h *http2Request) leaveLimits() {
	if !h.counted {
		return
	}
	h.counted = false
	if h.conn.requests > 0 { // closeBusiest has not ended the count
		h.conn.limiter.countRequests(h.conn, -1)
	}
}

// BeginStream ends the count of an HTTP/2 request that becomes an event stream, which has other limits.
func BeginStream(r *http.Request) {
	if q, ok := r.Context().Value(requestKey{}).(*http2Request); ok {
		q.conn.limiter.mu.Lock()
		defer q.conn.limiter.mu.Unlock()
		q.leaveLimits()
	}
}

// EndSoon is called before the response to a request that anybody may send, such as a rejected one. The client must read the
// response within ten seconds, and until then its connection may make room for another one, unless it has other requests.
func EndSoon(w http.ResponseWriter, r *http.Request) {
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(responseTime)) // otherwise WriteTimeout applies
	allowEviction(r, false)
}

// AllowEviction lets the connection of a request make room for another one although the request is in progress, if there is no
// connection without one and the connection has no other requests.
func AllowEviction(r *http.Request) { allowEviction(r, true) }

func allowEviction(r *http.Request, isServed bool) {
	c := limitedConnOfRequest(r.Context())
	if c == nil {
		return
	}
	l := c.limiter
	l.mu.Lock()
	defer l.mu.Unlock()
	if q, ok := r.Context().Value(requestKey{}).(*http2Request); ok && !q.ending {
		q.ending = true
		c.ending++
	}
	if c.ending == c.handlers { // both are 0 for HTTP/1
		l.setIdle(c, true)
		c.rejected, c.isServed = true, isServed
	}
}
