package storage

import (
	"math"
	"sync"

	"github.com/hubrelay/hubrelay/relay"
)

const (
	// roomDivisor determines the part of the room that a publisher may store on a node per interval.
	roomDivisor = 4
	// quietDivisor determines the part of what was stored recently up to which a publisher is quiet.
	quietDivisor = 10
	// recentDecay is the factor per interval for what was stored earlier. After ten minutes a third is left.
	recentDecay = 1 - 1.0/600
	// quietReserve is the part of the memory above the limit that only quiet publishers may use.
	quietReserve = 0.2
	// forgetBelow is the number of bytes below which a publisher is forgotten.
	forgetBelow = 100
)

// roomShares divides the room that is left between the publishers of this node. One that fills Redis would otherwise stop all
// others, and use all room that becomes free.
type roomShares struct {
	mu         sync.Mutex
	hasLimit   bool
	isFull     bool
	room       float64 // bytes until the limit, or, while the storage is full, until the end of the reserve
	allRoom    float64 // bytes until the end of the reserve
	recent     float64 // bytes that all publishers have stored recently
	publishers map[string]*usage
}

// usage is what a publisher has stored, in bytes.
type usage struct {
	interval float64 // since the last measurement
	recent   float64
}

// beginInterval starts an interval after a measurement.
func (s *roomShares) beginInterval(used, limit, maxMemory float64, isFull bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hasLimit, s.isFull = maxMemory > 0, isFull
	s.room = limit - used
	s.allRoom = s.room + (maxMemory-limit)*quietReserve
	if isFull {
		s.room = s.allRoom
	}
	s.recent *= recentDecay
	for name, u := range s.publishers {
		u.interval, u.recent = 0, u.recent*recentDecay
		if u.recent < forgetBelow {
			delete(s.publishers, name)
		}
	}
}

// mayPublish reports whether a publisher may store anything.
func (s *roomShares) mayPublish(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.isFull || s.isQuietLocked(s.publishers[name])
}

func (s *roomShares) isQuietLocked(u *usage) bool {
	return u == nil || u.recent <= s.recent/quietDivisor
}

// takeRoom reports whether a publisher may store bytes, and counts them. The first request of an interval may use all of the
// room, so that large requests are possible, and the limit is reached.
func (s *roomShares) takeRoom(name string, bytes float64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	u := s.publishers[name]
	share := s.room / roomDivisor
	if u == nil || u.interval == 0 {
		share = s.allRoom
	}
	if !s.hasLimit {
		share = math.Inf(1)
	}
	if u == nil {
		if s.publishers == nil {
			s.publishers = make(map[string]*usage)
		}
		u = &usage{}
		s.publishers[name] = u
	}
	if s.isFull && !s.isQuietLocked(u) || u.interval+bytes > share {
		return false
	}
	u.interval += bytes
	u.recent += bytes
	s.recent += bytes
	return true
}

// CheckPublisher returns a *[relay.Error] with the code 503.storage-full while a publisher may store nothing. While the storage
// is full, a quiet publisher may still store events: one that has stored at most a tenth of all on this node recently.
func (m *Monitor) CheckPublisher(name string) error {
	if m.shares.mayPublish(name) {
		return nil
	}
	return m.Check()
}

// TakeRoom counts bytes that a publisher is about to store. It returns a *[relay.Error] with the code 503.storage-full if they
// exceed a quarter of the room that is left, together with those since the last measurement. Copies for sinks do not count.
func (m *Monitor) TakeRoom(name string, bytes int64) error {
	if m.shares.takeRoom(name, float64(bytes)) {
		return nil
	}
	if err := m.Check(); err != nil {
		return err
	}
	return newShareError()
}

func newShareError() *relay.Error {
	return NewFullError("this account stores events too fast for the room that is left in the storage of the relay")
}
