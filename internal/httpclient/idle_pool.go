package httpclient

import (
	"net/url"
	"slices"
	"sync"
	"time"
)

// idlePool are the connections that wait for a request.
type idlePool struct {
	mu     sync.Mutex
	conns  []*http1Conn // the one that was used last is at the end
	reaper *time.Timer  // nil while there are none
	closed bool         // until the next request
}

// get returns the connection to the host of u that was used last, or nil.
func (i *idlePool) get(u *url.URL) *http1Conn {
	for {
		c := i.newest(u)
		if c == nil || c.stillIdle() {
			return c
		}
		_ = c.Close()
	}
}

func (i *idlePool) newest(u *url.URL) *http1Conn {
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

// put keeps c for at most limit, or closes it where there are enough.
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

// reapExpired closes what was idle for too long.
func (i *idlePool) reapExpired(limit time.Duration) {
	i.mu.Lock()
	now := time.Now()
	n := 0
	for n < len(i.conns) && now.Sub(i.conns[n].idleSince) >= limit {
		n++
	}
	over := slices.Clone(i.conns[:n])
	i.conns = slices.Delete(i.conns, 0, n)
	if i.reaper = nil; len(i.conns) > 0 {
		i.reaper = time.AfterFunc(limit-now.Sub(i.conns[0].idleSince), func() { i.reapExpired(limit) })
	}
	i.mu.Unlock()
	closeConns(over)
}

// close closes all of them, and those that come before the next take.
func (i *idlePool) close() {
	i.mu.Lock()
	over := i.conns
	i.conns, i.closed = nil, true
	if i.reaper != nil {
		i.reaper.Stop()
		i.reaper = nil
	}
	i.mu.Unlock()
	closeConns(over)
}

func closeConns(conns []*http1Conn) {
	for _, c := range conns {
		_ = c.Close()
	}
}
