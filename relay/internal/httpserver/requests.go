package httpserver

import (
	"cmp"
	"container/list"
	"context"
	"net"
	"net/http"
	"net/netip"
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
	// maxWaiting and maxGroupWaiting limit the HTTP/2 requests whose handler has not begun, or that net/http rejected itself, as
	// long as their connections are open, in total and per address. More requests wait until handlers have begun, except the
	// only one of its address. At the total limit, an address with many more requests makes room for one with fewer. After
	// waitingTime, the others are taken for rejected ones: the busiest connection of the address is closed, and at the second
	// time within blockTime the address is blocked. Each request may keep up to 28 KiB until its client has read the response.
	maxWaiting, maxGroupWaiting = 4000, 1000
	waitingTime                 = 2 * time.Second
	// smallBurst is the number of requests up to which an address is preferred to others that wait.
	smallBurst = 10
	// orphanTime is the time for which the waiting requests of a closed connection count. Their handlers usually begin and end
	// within it.
	orphanTime = time.Second
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
				"server.trusted_proxies", "request_count", l.requests, "remote", c.group)
		})
		return false
	}
	h.counted = true
	l.countRequests(c, 1)
	return true
}

// admission is a number of requests that arrived on a connection and are not counted yet. connLimiter.mu guards its fields.
type admission struct {
	conn       *limitedConn
	requests   int
	isSmall    bool          // its address has few waiting requests
	element    *list.Element // in connLimiter.smallAdmissions or largeAdmissions, or nil
	isAdmitted bool
	freed      chan struct{} // closed when it was admitted from the list, or should be tried again
}

// admitRequests counts requests that arrived on a connection, before net/http gets them. It waits while too many wait. Trusted
// proxies do not count, because they read responses.
func (l *connLimiter) admitRequests(c *limitedConn, requests int) {
	a := &admission{conn: c, requests: requests}
	freed := l.tryAdmit(a, false)
	if freed == nil {
		return
	}
	deadline := time.NewTicker(waitingTime)
	defer deadline.Stop()
	for freed != nil {
		select {
		case <-freed:
			freed = l.tryAdmit(a, false)
		case <-deadline.C:
			freed = l.tryAdmit(a, true)
		}
	}
}

// tryAdmit counts requests if the limits allow it, and returns nil. Otherwise it returns a channel that is closed when it should
// be called again. If isLate, it closes connections instead.
func (l *connLimiter) tryAdmit(a *admission, isLate bool) (freed <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if a.element != nil {
		l.queueOf(a).Remove(a.element)
		a.element = nil
	}
	c := a.conn
	for !a.isAdmitted && !c.isProxy && !c.removed {
		isGroupFull, isFull := l.isGroupFull(a), l.isFull(a)
		if !isGroupFull && !isFull {
			l.admit(a)
			break
		}
		busiest, mayClose := c.group, isLate
		switch {
		case isGroupFull:
		case l.waiting+a.requests > maxWaiting:
			busiest = l.findMostWaiting(busiest)
			mayClose = isLate || l.waitingOfGroup[busiest] > l.waitingOfGroup[c.group]+a.requests
		default:
			mayClose = false // only orphans take the room, and they leave soon
		}
		switch {
		case mayClose:
			l.closeMostWaiting(busiest)
		case isGroupFull:
			if l.freed[c.group] == nil {
				l.freed[c.group] = make(chan struct{})
			}
			return l.freed[c.group]
		default:
			a.isSmall = l.waitingOfGroup[c.group]+a.requests <= smallBurst
			a.element, a.freed = l.queueOf(a).PushBack(a), make(chan struct{})
			return a.freed
		}
	}
	return nil
}

// isGroupFull reports whether too many requests of the address wait. The caller holds l.mu.
func (l *connLimiter) isGroupFull(a *admission) bool {
	ofGroup := l.waitingOfGroup[a.conn.group]
	return ofGroup > 0 && ofGroup+a.requests > maxGroupWaiting
}

// isFull reports whether too many requests of all addresses wait. The only request of an address is always admitted. The caller
// holds l.mu.
func (l *connLimiter) isFull(a *admission) bool {
	isOnly := a.requests == 1 && l.waitingOfGroup[a.conn.group] == 0
	count := l.waiting + l.orphans
	return !isOnly && count > 0 && count+a.requests > maxWaiting
}

// admit counts requests. The caller holds l.mu.
func (l *connLimiter) admit(a *admission) {
	a.isAdmitted = true
	l.setWaiting(a.conn, a.conn.waiting+a.requests)
}

func (l *connLimiter) queueOf(a *admission) *list.List {
	if a.isSmall {
		return &l.smallAdmissions
	}
	return &l.largeAdmissions
}

// admitNext admits the oldest admissions that fit, the small ones first. The caller holds l.mu.
func (l *connLimiter) admitNext() {
	for {
		e := cmp.Or(l.smallAdmissions.Front(), l.largeAdmissions.Front())
		if e == nil {
			return
		}
		a, ok := e.Value.(*admission)
		if !ok || l.isFull(a) {
			return
		}
		l.queueOf(a).Remove(e)
		a.element = nil
		if !l.isGroupFull(a) {
			l.admit(a)
		}
		close(a.freed)
	}
}

// findMostWaiting returns the address with the most waiting requests, or the given one if no other has more. The caller holds
// l.mu.
func (l *connLimiter) findMostWaiting(group netip.Prefix) netip.Prefix {
	for other, n := range l.waitingOfGroup {
		if n > l.waitingOfGroup[group] {
			group = other
		}
	}
	return group
}

// setWaiting sets the number of waiting requests of a connection. The caller holds l.mu.
func (l *connLimiter) setWaiting(c *limitedConn, requests int) {
	if c.removed {
		requests = 0
	}
	if freed := l.freed[c.group]; freed != nil && (requests < c.waiting || c.removed) {
		close(freed)
		delete(l.freed, c.group)
	}
	l.waiting += requests - c.waiting
	if l.waitingOfGroup[c.group] += requests - c.waiting; l.waitingOfGroup[c.group] == 0 {
		delete(l.waitingOfGroup, c.group)
	}
	isFewer := requests < c.waiting
	c.waiting = requests
	if l.waitingConns[c] = struct{}{}; requests == 0 {
		delete(l.waitingConns, c)
	}
	if isFewer {
		l.admitNext()
	}
}

// setOrphans sets the number of waiting requests of a closed connection. The caller holds l.mu.
func (l *connLimiter) setOrphans(c *limitedConn, requests int) {
	isFewer := requests < c.orphans
	l.orphans += requests - c.orphans
	c.orphans = requests
	if isFewer {
		l.admitNext()
	}
}

// closeMostWaiting closes the connection of an address with the most waiting requests. The caller holds l.mu.
func (l *connLimiter) closeMostWaiting(group netip.Prefix) {
	var most *limitedConn
	for c := range l.waitingConns {
		if c.group == group && (most == nil || c.waiting > most.waiting) {
			most = c
		}
	}
	if most == nil {
		return
	}
	l.busyLog.Do(func() {
		l.log.Warn("connection with the most rejected HTTP/2 requests was closed", "request_count", l.waitingOfGroup[group],
			"remote", group)
	})
	if group.IsValid() {
		l.blockSecondTime(group)
	}
	l.remove(most)
	_ = most.Conn.Close()
	l.observer.ConnectionEvicted()
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
			"request_count", l.requests, "remote", busiest.group)
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
		c.rejected = true
	}
}
