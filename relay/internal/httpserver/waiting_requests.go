package httpserver

import (
	"cmp"
	"container/list"
	"net/netip"
	"time"
)

const (
	// maxWaiting and maxGroupWaiting limit the HTTP/2 requests whose handler has not begun, or that net/http rejected itself, as
	// long as their connections are open, in total and per address. More requests wait until handlers have begun, except the
	// only one of its address. At the total limit, the busiest address makes room for one with fewer requests. After waitingTime,
	// the rest are treated as rejected: the busiest connection of the address is closed, and at the second time within blockTime
	// the address is blocked. Each request may keep up to 28 KiB until its client has read the response.
	maxWaiting, maxGroupWaiting = 4000, 1000
	waitingTime                 = 2 * time.Second
	// smallBurst is the number of requests up to which an address is preferred to others that wait.
	smallBurst = 10
	// orphanTime is the time for which the waiting requests of a closed connection count. Their handlers usually begin and end
	// within it.
	orphanTime = time.Second
)

// admission is a number of requests that arrived on a connection and are not counted yet. connLimiter.mu guards its fields.
type admission struct {
	conn       *limitedConn
	requests   int
	isSmall    bool          // its address has few waiting requests
	element    *list.Element // in connLimiter.smallAdmissions or largeAdmissions, or nil
	isAdmitted bool
	freed      chan struct{} // closed when it was admitted from the list, or should be tried again
}

// admitRequests counts requests that arrived on a connection, before net/http gets them. It waits while too many wait. It
// returns false if the connection was closed. Trusted proxies do not count, because they read responses.
func (l *connLimiter) admitRequests(c *limitedConn, requests int) bool {
	a := &admission{conn: c, requests: requests}
	freed := l.tryAdmit(a, false)
	if freed == nil {
		return a.isAdmitted
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
	return a.isAdmitted
}

// tryAdmit counts requests if the limits allow it, and returns nil, also for a closed connection. Otherwise it returns a channel
// that is closed when it should be called again. If isLate, it closes connections instead.
func (l *connLimiter) tryAdmit(a *admission, isLate bool) (freed <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := a.conn
	if c.isProxy {
		a.isAdmitted = true
	}
	for !a.isAdmitted && !c.removed {
		if !l.isGroupFull(a) && !l.isFull(a) {
			l.admit(a)
			break
		}
		busiest, ok := l.findBusiest(a, isLate)
		if !ok {
			return l.enqueue(a)
		}
		if !l.closeMostWaiting(busiest) {
			l.admit(a) // more than the limit in one read
		}
	}
	l.unqueue(a)
	return nil
}

// findBusiest returns the address that makes room for an admission. ok is false while the admission should wait. The caller
// holds l.mu.
func (l *connLimiter) findBusiest(a *admission, isLate bool) (busiest netip.Prefix, ok bool) {
	group := a.conn.group
	if l.isGroupFull(a) {
		return group, isLate
	}
	if l.waiting+a.requests <= maxWaiting {
		return group, false // only orphans take the room, and they leave soon
	}
	busiest = l.findMostWaiting(group)
	return busiest, isLate || l.waitingOfGroup[busiest] > l.waitingOfGroup[group]+a.requests
}

// enqueue returns a channel that is closed when an admission should be tried again. The caller holds l.mu.
func (l *connLimiter) enqueue(a *admission) <-chan struct{} {
	group := a.conn.group
	if l.isGroupFull(a) {
		l.unqueue(a)
		if l.freed[group] == nil {
			l.freed[group] = make(chan struct{})
		}
		return l.freed[group]
	}
	if a.element == nil {
		a.isSmall = l.waitingOfGroup[group]+a.requests <= smallBurst
		a.element, a.freed = l.queueOf(a).PushBack(a), make(chan struct{})
		a.conn.queued = a
	}
	return a.freed
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
	l.unqueue(a)
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
		l.unqueue(a)
		if !l.isGroupFull(a) {
			l.admit(a)
		}
		close(a.freed)
	}
}

// unqueue removes an admission from its queue. It may be called twice. The caller holds l.mu.
func (l *connLimiter) unqueue(a *admission) {
	if a.element != nil {
		l.queueOf(a).Remove(a.element)
		a.element, a.conn.queued = nil, nil
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

// closeMostWaiting closes the connection of an address with the most waiting requests. It reports whether there was one. The
// caller holds l.mu.
func (l *connLimiter) closeMostWaiting(group netip.Prefix) bool {
	var most *limitedConn
	for c := range l.waitingConns {
		if c.group == group && (most == nil || c.waiting > most.waiting) {
			most = c
		}
	}
	if most == nil {
		return false
	}
	l.busyLog.Do(func() {
		l.log.Warn("connection with the most rejected HTTP/2 requests was closed", "request_count", l.waitingOfGroup[group],
			"address", group)
	})
	if group.IsValid() {
		l.blockSecondTime(group)
	}
	l.remove(most)
	_ = most.Conn.Close()
	l.observer.ConnectionEvicted()
	return true
}
