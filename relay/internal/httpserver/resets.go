package httpserver

import (
	"maps"
	"net/netip"
	"time"
)

const (
	// resetBurst and resetsPerSecond limit how many requests on an HTTP/2 connection its client may reset. A client
	// that resets each request at once would otherwise get around maxStreams (CVE-2023-44487).
	resetBurst      = 200
	resetsPerSecond = 20
	// blockTime is the time without new connections for the address of a connection that was closed for its requests. An attacker
	// would otherwise continue on a new connection.
	blockTime = 10 * time.Second
	// maxBlocked is the maximum number of blocked addresses. More are not blocked.
	maxBlocked = 4096
)

// blockAddress rejects new connections of an address for blockTime. The caller holds l.mu.
func (l *connLimiter) blockAddress(group netip.Prefix) {
	now := time.Now()
	if !l.noteBlocked(group, now.Add(blockTime)) {
		return
	}
	l.blockLog.Do(func() {
		l.log.Warn("too many reset or rejected requests, the address is blocked; if it is a proxy, add it to server.trusted_proxies",
			"address", group, "duration", blockTime)
	})
}

// blockSecondTime blocks an address if it is called twice within blockTime. The first call notes the time, as the end of a block
// that has already ended. The caller holds l.mu.
func (l *connLimiter) blockSecondTime(group netip.Prefix) {
	now := time.Now()
	if last, ok := l.blocked[group]; ok && now.Sub(last) < blockTime {
		l.blockAddress(group)
	} else {
		l.noteBlocked(group, now)
	}
}

// closeFlooding closes a connection with too many HTTP/2 frames or bytes of TLS that carry nothing. It blocks the address at the
// second time. It reports false for trusted proxies, which forward the frames of many clients.
func (l *connLimiter) closeFlooding(c *limitedConn) bool {
	if c.isProxy {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if c.removed {
		return true
	}
	l.busyLog.Do(func() {
		l.log.Warn("connection with too many HTTP/2 frames or TLS records without content was closed", "address", c.group)
	})
	if c.group.IsValid() {
		l.blockSecondTime(c.group)
	}
	l.remove(c)
	_ = c.Conn.Close()
	l.observer.ConnectionEvicted()
	return true
}

// noteBlocked stores the end of a block, unless too many addresses are stored. The caller holds l.mu.
func (l *connLimiter) noteBlocked(group netip.Prefix, end time.Time) bool {
	if _, ok := l.blocked[group]; !ok && len(l.blocked) >= maxBlocked {
		now := time.Now()
		maps.DeleteFunc(l.blocked, func(_ netip.Prefix, end time.Time) bool { return now.Sub(end) >= blockTime })
		if len(l.blocked) >= maxBlocked {
			return false
		}
	}
	l.blocked[group] = end
	return true
}

// isBlocked reports whether an address is blocked. The caller holds l.mu.
func (l *connLimiter) isBlocked(group netip.Prefix) bool {
	return len(l.blocked) > 0 && time.Now().Before(l.blocked[group])
}
