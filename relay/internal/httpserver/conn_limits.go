package httpserver

import (
	"container/list"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"github.com/hubrelay/hubrelay/relay/internal/clientaddr"
	"github.com/pires/go-proxyproto"
	"golang.org/x/time/rate"
)

// ConnLimits are the maximum numbers of connections of a listener, streams among them. Zero means no limit.
type ConnLimits struct {
	// Total limits all connections.
	Total int
	// PerIP limits the connections of one client address (see [clientaddr.Group]). Loopback and trusted proxies have
	// no such limit.
	PerIP int
}

// ConnLimit names one of the [ConnLimits].
type ConnLimit string

// The limits that may reject a connection.
const (
	ConnLimitTotal ConnLimit = "total"
	ConnLimitIP    ConnLimit = "ip"
	// ConnLimitBlocked rejects the connections of an address that has sent too many requests which were reset or rejected.
	ConnLimitBlocked ConnLimit = "blocked"
)

// ConnObserver counts connections for metrics. Its methods are called concurrently and must not block.
type ConnObserver interface {
	// ConnectionOpened and ConnectionClosed are called once for each accepted connection.
	ConnectionOpened()
	ConnectionClosed()
	// ConnectionRejected is called for each connection that exceeds a limit.
	ConnectionRejected(limit ConnLimit)
	// ConnectionEvicted is called for each connection that was closed because of a limit: an idle one to make room for a new
	// one, or the busiest one.
	ConnectionEvicted()
	// AcceptFailed is called for each failure to accept a connection, such as too many open files.
	AcceptFailed()
}

type noConnObserver struct{}

func (noConnObserver) ConnectionOpened()            {}
func (noConnObserver) ConnectionClosed()            {}
func (noConnObserver) ConnectionRejected(ConnLimit) {}
func (noConnObserver) ConnectionEvicted()           {}
func (noConnObserver) AcceptFailed()                {}

const (
	// maxEvictionTries bounds the search for an idle connection without unread data.
	maxEvictionTries = 16
	// maxUnreadTime is the time after which an idle connection with unread data may be closed.
	maxUnreadTime    = 10 * time.Second
	limitLogInterval = time.Minute
)

// connLimiter enforces the limits of a listener. If one is reached, the longest idle connection makes room. A
// connection is idle if it runs no handler, or only handlers of rejected requests (see [EndSoon]). If none is idle, the
// new connection is closed.
type connLimiter struct {
	limits   ConnLimits
	proxies  clientaddr.Proxies
	observer ConnObserver
	log      *slog.Logger

	rejectLog, evictLog, failLog, blockLog, busyLog rate.Sometimes

	mu   sync.Mutex
	open int
	ips  map[netip.Prefix]*ipConns // only of addresses with a limit
	idle list.List                 // of *limitedConn, the longest idle first
	// blocked are the addresses that have sent too many requests which were reset or rejected, with the end of the time without
	// new connections. An address that reached the limit of waiting requests once has the time at which it did.
	blocked map[netip.Prefix]time.Time
	// requests and requestsOfGroup count the HTTP/2 requests in progress, in total and per address, without event streams.
	// busyConns are the connections with such requests. Trusted proxies count only in total.
	requests        int
	requestsOfGroup map[netip.Prefix]int
	busyConns       map[*limitedConn]struct{}
	// waiting and waitingOfGroup count the HTTP/2 requests that arrived and whose handler has not begun. It never begins for
	// requests that net/http rejects itself, such as those with a too large header. waitingConns are their connections.
	waiting        int
	waitingOfGroup map[netip.Prefix]int
	waitingConns   map[*limitedConn]struct{}
	freed          map[netip.Prefix]chan struct{} // by address with waiting connections; closed when fewer requests wait
	// orphans count the waiting requests of closed connections, until their handlers have begun or orphanTime has passed.
	orphans int
	// smallAdmissions and largeAdmissions wait because of the total limit, the oldest first.
	smallAdmissions, largeAdmissions list.List // of *admission
	// unfinished are the HTTP/1 connections with an unfinished request header of more than unfinishedBytes, the oldest first.
	unfinished list.List // of *limitedConn
}

// ipConns are the connections of one client address.
type ipConns struct {
	group netip.Prefix // key of connLimiter.ips
	open  int
	idle  list.List // of *limitedConn, the longest idle first
}

func newConnLimiter(o Options) *connLimiter {
	l := &connLimiter{
		limits: o.ConnLimits, proxies: o.TrustedProxies, observer: o.ConnObserver, log: o.Log,
		rejectLog: rate.Sometimes{Interval: limitLogInterval}, evictLog: rate.Sometimes{Interval: limitLogInterval},
		failLog: rate.Sometimes{Interval: limitLogInterval}, blockLog: rate.Sometimes{Interval: limitLogInterval},
		busyLog: rate.Sometimes{Interval: limitLogInterval},
		ips:     make(map[netip.Prefix]*ipConns), blocked: make(map[netip.Prefix]time.Time),
		requestsOfGroup: make(map[netip.Prefix]int), busyConns: make(map[*limitedConn]struct{}),
		waitingOfGroup: make(map[netip.Prefix]int), waitingConns: make(map[*limitedConn]struct{}),
		freed: make(map[netip.Prefix]chan struct{}),
	}
	if l.observer == nil {
		l.observer = noConnObserver{}
	}
	return l
}

// limitListener accepts connections within the limits.
type limitListener struct {
	net.Listener
	limiter *connLimiter
}

func (l *limitListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			l.limiter.handleError(err)
			return nil, err
		}
		if limited := l.limiter.add(conn); limited != nil {
			return limited, nil
		}
		_ = conn.Close()
	}
}

// handleError reports that a connection could not be accepted. net/http tries again after a pause.
func (l *connLimiter) handleError(err error) {
	if errors.Is(err, net.ErrClosed) {
		return
	}
	l.observer.AcceptFailed()
	l.failLog.Do(func() { l.log.Error("connection could not be accepted", "error", err) })
	if errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) {
		l.mu.Lock()
		l.evict(&l.idle)
		l.mu.Unlock()
	}
}

// add counts a new connection. It returns nil if a limit is reached and no connection is idle.
func (l *connLimiter) add(conn net.Conn) *limitedConn {
	c := &limitedConn{Conn: conn, limiter: l}
	l.mu.Lock()
	defer l.mu.Unlock()
	peer, err := netip.ParseAddrPort(conn.RemoteAddr().String())
	if err == nil && !l.joinAddress(c, peer.Addr()) {
		return nil
	}
	if l.limits.Total > 0 && l.open >= l.limits.Total && !l.evict(&l.idle) {
		l.leaveAddress(c)
		l.reject(ConnLimitTotal, netip.Addr{})
		return nil
	}
	l.open++
	l.observer.ConnectionOpened()
	return c
}

// joinAddress counts a connection for an address, and reports whether the address may have another one. The caller holds l.mu.
func (l *connLimiter) joinAddress(c *limitedConn, addr netip.Addr) bool {
	c.group, c.isProxy = clientaddr.Group(addr), l.proxies.Contains(addr)
	if l.isBlocked(c.group) {
		l.reject(ConnLimitBlocked, addr)
		return false
	}
	if l.limits.PerIP <= 0 || addr.Unmap().IsLoopback() || c.isProxy {
		return true
	}
	ip := l.ips[c.group]
	if ip == nil {
		ip = &ipConns{group: c.group}
	}
	if ip.open >= l.limits.PerIP && !l.evict(&ip.idle) {
		l.reject(ConnLimitIP, addr)
		return false
	}
	c.ip = ip
	ip.open++
	l.ips[ip.group] = ip // again, if the last one of the address made room
	return true
}

// leaveAddress ends the count of a connection for its address. The caller holds l.mu.
func (l *connLimiter) leaveAddress(c *limitedConn) {
	if c.ip == nil {
		return
	}
	if c.ip.open--; c.ip.open == 0 {
		delete(l.ips, c.ip.group)
	}
}

// setClient makes a connection of a proxy count for its client. The caller closes the connection if the result is false, because
// the client has reached a limit.
func (l *connLimiter) setClient(c *limitedConn, addr netip.Addr) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if c.removed {
		return false
	}
	isAllowed := l.joinAddress(c, addr)
	l.setIdle(c, c.idle != nil) // also among the idle ones of the address
	return isAllowed
}

func (l *connLimiter) reject(limit ConnLimit, peer netip.Addr) {
	l.observer.ConnectionRejected(limit)
	if limit == ConnLimitBlocked { // blockAddress has logged it
		return
	}
	l.rejectLog.Do(func() {
		attrs := []any{"limit", string(limit), "connection_count", l.open}
		if peer.IsValid() {
			attrs = append(attrs, "address", peer)
		}
		l.log.Warn("connection rejected, too many are open", attrs...)
	})
}

// remove ends the count of a connection. It may be called twice. The caller holds l.mu.
func (l *connLimiter) remove(c *limitedConn) {
	if c.removed {
		return
	}
	c.removed = true
	l.setIdle(c, false)
	l.setUnfinished(c, false)
	if c.waiting > 0 {
		l.setOrphans(c, c.waiting)
		time.AfterFunc(orphanTime, func() {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.setOrphans(c, 0)
		})
	}
	l.setWaiting(c, 0)
	if a := c.queued; a != nil {
		l.unqueue(a)
		close(a.freed)
	}
	l.open--
	l.leaveAddress(c)
	l.observer.ConnectionClosed()
}

// onState is called for each change of the state of a connection.
func (l *connLimiter) onState(conn net.Conn, state http.ConnState) {
	c := limitedConnOf(conn)
	if c == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	// When the header of a request has arrived, the connection becomes the last to be evicted. Its handler makes it busy, until
	// net/http reports it as idle.
	l.setIdle(c, state == http.StateNew || state == http.StateIdle || state == http.StateActive)
	if state == http.StateIdle {
		c.busy.Store(false)
	}
}

// beginHandler marks a connection as busy. The caller holds l.mu.
func (l *connLimiter) beginHandler(c *limitedConn) {
	l.setIdle(c, false)
	c.busy.Store(true)
	c.unanswered.Store(0)
	l.setUnfinished(c, false)
}

// setUnfinished adds a connection to the unfinished ones, or removes it. The caller holds l.mu.
func (l *connLimiter) setUnfinished(c *limitedConn, unfinished bool) {
	if c.unfinished != nil {
		l.unfinished.Remove(c.unfinished)
		c.unfinished = nil
	}
	if !unfinished || c.removed || c.busy.Load() || c.isHTTP2 {
		return
	}
	c.unfinished = l.unfinished.PushBack(c)
	if l.unfinished.Len() > maxUnfinished {
		l.closeUnfinished()
	}
}

// setIdle moves a connection to the end of the lists of idle connections, or removes it from them. The caller holds l.mu.
func (l *connLimiter) setIdle(c *limitedConn, idle bool) {
	idle = idle && !c.removed
	c.rejected, c.isServed, c.unreadSince = false, false, time.Time{}
	if c.idle != nil {
		l.idle.Remove(c.idle)
	}
	c.idle = nil
	if idle {
		c.idle = l.idle.PushBack(c)
	}
	if c.ip == nil {
		return
	}
	if c.idleOfIP != nil {
		c.ip.idle.Remove(c.idleOfIP)
	}
	c.idleOfIP = nil
	if idle {
		c.idleOfIP = c.ip.idle.PushBack(c)
	}
}

// newProxyListener accepts headers of the PROXY protocol (versions 1 and 2) from trusted proxies. Connections of others
// are not wrapped, so such a header is not HTTP and is rejected.
func newProxyListener(l net.Listener, o Options) net.Listener {
	return &proxyproto.Listener{
		Listener: l, ReadHeaderTimeout: o.ReadHeaderTimeout,
		ConnPolicy: func(c proxyproto.ConnPolicyOptions) (proxyproto.Policy, error) {
			peer, err := netip.ParseAddrPort(c.Upstream.String())
			if err == nil && o.TrustedProxies.Contains(peer.Addr()) {
				return proxyproto.USE, nil
			}
			return proxyproto.SKIP, nil
		},
	}
}
