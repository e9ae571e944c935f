package httpclient

import (
	"net/url"
	"slices"
	"sync"
	"time"
)

// idlePool holds the idle connections of a Transport.
type idlePool struct {
	mu     sync.Mutex
	conns  []*http1Conn // the most recently used connection is last
	reaper *time.Timer  // nil while the pool is empty
	closed bool         // reset by the next request
}

// get removes and returns the most recently used connection to the host of u. It returns nil if the pool has none.
func (i *idlePool) get(u *url.URL) *http1Conn {
	for {
		c := i.takeNewest(u)
		if c == nil || c.stillIdle() {
			return c
		}
		_ = c.Close()
	}
}

func (i *idlePool) takeNewest(u *url.URL) *http1Conn {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.closed = false
	for n := len(i.conns) - 1; n >= 0; n-- {
		if c := i.conns[n]; c.host == u.Host && c.scheme == u.Scheme {
			i.conns = slices.Delete(i.conns, n, n+1)
			return c
		}
	}
	return nil
}

// put stores c for at most limit. It closes c if the pool is full or closed.
func (i *idlePool) put(c *http1Conn, limit time.Duration) {
	i.mu.Lock()
	if i.closed || len(i.conns) >= idleConns {
		i.mu.Unlock()
		_ = c.Close()
		return
	}
	c.idleSince = time.Now()
	i.conns = append(i.conns, c)
	if i.reaper == nil {
		i.reaper = time.AfterFunc(limit, func() { i.reapExpired(limit) })
	}
	i.mu.Unlock()
}

// reapExpired closes the connections that were idle for limit or longer.
func (i *idlePool) reapExpired(limit time.Duration) {
	i.mu.Lock()
	now := time.Now()
	n := 0
	for n < len(i.conns) && now.Sub(i.conns[n].idleSince) >= limit {
		n++
	}
	expired := slices.Clone(i.conns[:n])
	i.conns = slices.Delete(i.conns, 0, n)
	if i.reaper = nil; len(i.conns) > 0 {
		i.reaper = time.AfterFunc(limit-now.Sub(i.conns[0].idleSince), func() { i.reapExpired(limit) })
	}
	i.mu.Unlock()
	closeConns(expired)
}

// close closes all connections. Until the next get, put closes its connection too.
func (i *idlePool) close() {
	i.mu.Lock()
	conns := i.conns
	i.conns, i.closed = nil, true
	if i.reaper != nil {
		i.reaper.Stop()
		i.reaper = nil
	}
	i.mu.Unlock()
	closeConns(conns)
}

func closeConns(conns []*http1Conn) {
	for _, c := range conns {
		_ = c.Close()
	}
}
