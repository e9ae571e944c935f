package storage

import (
	"sync"
	"time"

	"github.com/hubrelay/hubrelay/relay"
)

const (
	// activeTime is the time after a request for which a client counts as active.
	activeTime = time.Hour
	// reserve is the share of the memory before the limit that is kept for clients that store little.
	reserve = 0.02
	// While several clients are active, each may store a fourth of the room before the reserve per interval, or less if there are more
	// than four. Of the reserve, it may store a small part, so clients that store little can store as long as there is room.
	minRoomDivisor    = 4
	minReserveDivisor = 64
	// minShare is the minimum number of bytes that a client may store per interval, so that publishing stops only at the limit.
	minShare = 8 << 10
)

// shares divides the room that is left between the clients of a node. A client that fills Redis would otherwise stop all others,
// and use up all room that becomes free.
type shares struct {
	mu sync.Mutex
	// share is the number of bytes that a client may store until the next measurement. 0 is no limit.
	share    int64
	interval int // counts the measurements
	clients  map[string]*client
}

// client is a client that was active within activeTime.
type client struct {
	activeAt time.Time
	interval int
	stored   int64 // in this interval
}

// beginInterval starts an interval after a measurement. maxMemory is 0 without a limit, and room the number of bytes until publishing
// stops.
func (s *shares) beginInterval(maxMemory, room float64, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.interval++
	s.share = 0
	for name, c := range s.clients {
		if now.Sub(c.activeAt) > activeTime {
			delete(s.clients, name)
		}
	}
	if maxMemory > 0 {
		n := float64(len(s.clients))
		s.share = max(int64(max(room-maxMemory*reserve, 0)/max(minRoomDivisor, n)+room/max(minReserveDivisor, n)), minShare)
	}
}

// takeRoom reports whether the client may store size bytes, and counts them.
func (s *shares) takeRoom(name string, size int64, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.clients[name]
	if c == nil {
		if s.clients == nil {
			s.clients = make(map[string]*client)
		}
		c = &client{}
		s.clients[name] = c
	}
	if c.interval != s.interval {
		c.interval, c.stored = s.interval, 0
	}
	c.activeAt = now
	if s.share > 0 && len(s.clients) > 1 && c.stored+size > s.share {
		return false
	}
	c.stored += size
	return true
}

// TakeRoom counts bytes that a client is about to store. It returns a *[relay.Error] with the code 503.storage-full if the memory is
// nearly full and the client has used its share of the rest since the last measurement. A client that is alone on this node has no
// limit.
func (m *Monitor) TakeRoom(client string, size int64) error {
	if m.shares.takeRoom(client, size, time.Now()) {
		return nil
	}
	return newShareError()
}

func newShareError() *relay.Error {
	return NewFullError("the storage of the relay is nearly full, and this account has used its share of the rest")
}
