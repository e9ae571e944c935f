package storage

import (
	"math"
	"sync"

	"github.com/hubrelay/hubrelay/relay"
)

const (
	// A publisher may store a quarter of the room on a node per interval.
	roomDivisor = 4
	// A publisher is quiet if it has recently sent at most half as many bytes as the average.
	quietDivisor = 2
	// averageTolerance is the factor up to which the owner of a request counts as average.
	averageTolerance = 1.1
	// recentDecay is the factor of recent bytes per interval. It leaves a third after ten minutes.
	recentDecay = 1 - 1.0/600
	// quietReserve is the part of the memory above the limit that quiet publishers may use while the storage is full.
	quietReserve = 0.5
	// eventReserve is the part of the memory above the limit that events may use, and tokens and other requests may not.
	eventReserve = quietReserve / 2
	// forgetBelow is the number of recent bytes below which a publisher is removed.
	forgetBelow = 100
)

// roomShares divides the room that is left between the publishers of this node. One that fills Redis would otherwise stop all
// others, and use all room that becomes free.
type roomShares struct {
	mu        sync.Mutex
	hasLimit  bool
	isFull    bool
	room      float64 // bytes until the limit, or, while the storage is full, until the end of the reserve
	allRoom   float64 // bytes until the end of the reserve
	eventRoom float64 // bytes of allRoom that only events may use
	events    usages
	requests  usages           // of requests that publish nothing, such as those for tokens
	small     map[string]int64 // bytes of small requests since the last measurement, by owner
	allSmall  float64          // bytes of small requests since the last measurement
}

// usages are the usages of all publishers.
type usages struct {
	recent float64 // bytes of recent requests, also of rejected ones
	byName map[string]*usage
}

// isQuiet reports whether a publisher, which may be new (nil), has recently sent at most half of the average.
func (us *usages) isQuiet(u *usage) bool {
	return u == nil || u.recent*float64(len(us.byName))*quietDivisor <= us.recent
}

func (us *usages) beginInterval() {
	us.recent *= recentDecay
	for name, u := range us.byName {
		u.interval, u.recent = 0, u.recent*recentDecay
		if u.recent < forgetBelow {
			delete(us.byName, name)
		}
	}
}

func (us *usages) resetIntervals() {
	for _, u := range us.byName {
		u.interval = 0
	}
}

// findOrAdd returns the usage of a publisher, and adds a new one.
func (us *usages) findOrAdd(name string) *usage {
	u := us.byName[name]
	if u == nil {
		if us.byName == nil {
			us.byName = make(map[string]*usage)
		}
		u = &usage{}
		us.byName[name] = u
	}
	return u
}

// usage counts the bytes that a publisher has sent.
type usage struct {
	interval float64 // stored since the last measurement
	recent   float64 // recently, also what was rejected
}

// beginInterval starts an interval after a measurement.
func (s *roomShares) beginInterval(used, limit, maxMemory float64, isFull bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hasLimit, s.isFull = maxMemory > 0, isFull
	s.room = limit - used
	s.allRoom = s.room + (maxMemory-limit)*quietReserve
	s.eventRoom = (maxMemory - limit) * eventReserve
	if isFull {
		s.room = s.allRoom
	}
	s.resetSmallLocked()
	s.events.beginInterval()
	s.requests.beginInterval()
}

// resetUsage starts an interval without a measurement. The room stays reduced.
func (s *roomShares) resetUsage() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.resetSmallLocked()
	s.events.resetIntervals()
	s.requests.resetIntervals()
}

func (s *roomShares) resetSmallLocked() {
	clear(s.small)
	s.allSmall = 0
}

// mayPublish reports whether a publisher may store anything.
func (s *roomShares) mayPublish(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.isFull || s.isQuietPublisherLocked(s.events.byName[name])
}

// isQuietPublisherLocked reports whether a publisher, which may be new (nil), is quiet among the publishers, or has recently sent at
// most half as many bytes as all tokens and other requests together, which may have filled the storage.
func (s *roomShares) isQuietPublisherLocked(u *usage) bool {
	return s.events.isQuiet(u) || u.recent*quietDivisor <= s.requests.recent
}

// isQuietOwnerLocked reports whether the owner of a request is quiet among the owners of requests. It is also quiet if it has recently
// used at most half as many bytes as all events, which may have filled the storage, and about the average of all requests at most.
func (s *roomShares) isQuietOwnerLocked(name string, u *usage) bool {
	if s.requests.isQuiet(u) {
		return true
	}
	own := u.recent
	if publisher := s.events.byName[name]; publisher != nil {
		own += publisher.recent
	}
	average := s.requests.recent / float64(len(s.requests.byName))
	return own*quietDivisor <= s.events.recent && u.recent <= average*averageTolerance
}

// countSmall counts bytes of a small request, and reports whether the small requests of its owner and of all owners have taken
// few bytes since the last measurement. An identity provider may choose many accounts.
func (s *roomShares) countSmall(name string, bytes int64) (isFew bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.small == nil {
		s.small = make(map[string]int64)
	}
	s.small[name] += bytes
	s.allSmall += float64(bytes)
	return s.small[name] <= maxSmallBytes && (!s.hasLimit || s.allSmall <= s.room/roomDivisor)
}

// takeRoom reports whether a publisher may store bytes, and counts them. The first request of an interval may use all of the
// room, and a quiet publisher also the reserve. Otherwise large requests would be impossible, and publishing would stop
// before the limit. Part of the reserve is only for events.
func (s *roomShares) takeRoom(name string, bytes float64, isEvent bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	group, rest := &s.events, s.allRoom
	if !isEvent {
		group, rest = &s.requests, s.allRoom-s.eventRoom
	}
	u := group.findOrAdd(name)
	var isQuiet bool
	if isEvent {
		isQuiet = s.isQuietPublisherLocked(u)
	} else {
		isQuiet = s.isQuietOwnerLocked(name, u)
	}
	share := s.room / roomDivisor
	switch {
	case !s.hasLimit:
		share = math.Inf(1)
	case isQuiet:
		share = u.interval + rest
	case u.interval == 0:
		share = s.room
	}
	u.recent += bytes
	group.recent += bytes
	if s.isFull && !isQuiet || u.interval+bytes > share || s.hasLimit && bytes > rest {
		return false
	}
	s.room -= bytes
	s.allRoom -= bytes
	u.interval += bytes
	return true
}

// returnRoom makes a publisher as quiet as it was. It returns no room, because a measurement may have done so already.
func (s *roomShares) returnRoom(name string, bytes float64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	u := s.events.byName[name]
	if u == nil {
		return
	}
	recent := min(bytes, u.recent)
	u.recent -= recent
	s.events.recent -= recent
}

// CheckPublisher returns a *[relay.Error] with the code 503.storage-full while a publisher may store nothing. While the storage
// is full, a quiet publisher may still store events: one that has recently sent at most half of the average of this node,
// or half of the bytes of tokens and other requests.
func (m *Monitor) CheckPublisher(name string) error {
	if m.shares.mayPublish(name) {
		return nil
	}
	return m.Check()
}

// TakeRoom counts bytes that a publisher is about to store. It returns a *[relay.Error] with the code 503.storage-full if they
// exceed a quarter of the room that is left, together with those since the last measurement. The first request since then, and
// the requests of a quiet publisher, may exceed it. Copies for sinks do not count.
func (m *Monitor) TakeRoom(name string, bytes int64) error {
	return m.takeRoom(name, bytes, true)
}

// ReturnRoom subtracts bytes that TakeRoom has counted for a publisher, but that were not stored, because the request repeated an
// earlier one. The next measurement frees their room.
func (m *Monitor) ReturnRoom(name string, bytes int64) { m.shares.returnRoom(name, float64(bytes)) }

func (m *Monitor) takeRoom(name string, bytes int64, isEvent bool) error {
	if m.shares.takeRoom(name, float64(bytes), isEvent) {
		return nil
	}
	if err := m.Check(); err != nil {
		return err
	}
	return newShareError()
}

const (
	// smallBytes is the size from which the data of a request counts before the storage is full.
	smallBytes = 4 << 10
	// maxSmallBytes is the number of bytes of smaller requests per owner and second that do not count, while all owners together
	// use at most a quarter of the room. It is more than the default quota of requests allows an account with usual tokens.
	maxSmallBytes = 256 << 10
)

// TakeRoomForRequest is TakeRoom for a request that publishes nothing, such as one for a token or a migration. A few small ones count
// only while the storage is full. The second half of the reserve is for events.
func (m *Monitor) TakeRoomForRequest(name string, bytes int64) error {
	if bytes < smallBytes && m.shares.countSmall(name, bytes) && m.Check() == nil {
		return nil
	}
	return m.takeRoom(name, bytes, false)
}

func newShareError() *relay.Error {
	return NewFullError("this account or key stores data too fast for the memory that is left in Redis; publish more slowly")
}
