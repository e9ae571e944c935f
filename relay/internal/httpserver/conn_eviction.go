package httpserver

import (
	"container/list"
	"net/netip"
	"time"
)

// evict closes the longest idle connection of a list. If there is none, it closes one that is served. The caller holds l.mu.
func (l *connLimiter) evict(idle *list.List) bool {
	return l.evictIdle(idle, false) || l.evictIdle(idle, true)
}

// evictIdle closes the longest idle connection of a list. A connection whose request has arrived, but was not read yet, is not
// idle. The caller holds l.mu.
func (l *connLimiter) evictIdle(idle *list.List, served bool) bool {
	now := time.Now()
	for range min(maxEvictionTries, idle.Len()) {
		e := idle.Front()
		c, ok := e.Value.(*limitedConn)
		if !ok || c.isServed != served || !c.rejected && c.hasUnreadRequest(now) {
			idle.MoveToBack(e) // the next search begins with others
			continue
		}
		l.remove(c)
		_ = c.Conn.Close() // the goroutine of net/http ends with an error
		l.observer.ConnectionEvicted()
		l.evictLog.Do(func() { l.log.Info("idle connections are closed to make room", "connection_count", l.open) })
		return true
	}
	return false
}

// hasUnreadRequest reports whether bytes have arrived that net/http will read soon. If it has not read them after a while, the
// client keeps it busy, for example with responses that it does not read. The caller holds l.mu.
func (c *limitedConn) hasUnreadRequest(now time.Time) bool {
	if !hasUnreadData(c.Conn) {
		c.unreadSince = time.Time{}
		return false
	}
	if c.unreadSince.IsZero() {
		c.unreadSince = now
	}
	return now.Sub(c.unreadSince) < maxUnreadTime
}

// closeUnfinished closes the oldest unfinished connection of the address with the most. The caller holds l.mu.
func (l *connLimiter) closeUnfinished() {
	var oldest *limitedConn
	counts := make(map[netip.Prefix]int)
	for e := l.unfinished.Back(); e != nil; e = e.Prev() {
		c, ok := e.Value.(*limitedConn)
		if !ok {
			continue
		}
		counts[c.group]++
		if oldest == nil || counts[c.group] >= counts[oldest.group] {
			oldest = c
		}
	}
	if oldest == nil {
		return
	}
	l.busyLog.Do(func() {
		l.log.Warn("connections with unfinished requests are closed, too many are open", "address", oldest.group)
	})
	l.remove(oldest)
	_ = oldest.Conn.Close()
	l.observer.ConnectionEvicted()
}
