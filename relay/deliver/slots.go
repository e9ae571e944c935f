package deliver

import (
	"context"
	"sync"
)

// slots bounds how many attempts of a sink run at once. Fresh deliveries wait in line; retries are claimed only for
// slots that they hold already, so that a claim never waits. While both want slots, they get them by turns.
type slots struct {
	// ready is called without a lock when slots were set aside for retries.
	ready func()

	mu       sync.Mutex
	size     int
	free     int
	line     []chan struct{} // fresh deliveries
	wanted   bool            // retries are due and there was no slot
	reserved int             // set aside for retries
	turn     bool            // the next slot that both want goes to a retry
}

func newSlots(n int) *slots { return &slots{size: n, free: n, ready: func() {}} }

// acquire waits for a slot.
func (s *slots) acquire(ctx context.Context) error {
	s.mu.Lock()
	if s.free > 0 && len(s.line) == 0 {
		s.free--
		s.mu.Unlock()
		return nil
	}
	ticket := make(chan struct{})
	s.line = append(s.line, ticket)
	s.mu.Unlock()
	select {
	case <-ticket:
		return nil
	case <-ctx.Done():
	}
	s.mu.Lock()
	for i, other := range s.line {
		if other == ticket {
			s.line = append(s.line[:i:i], s.line[i+1:]...)
			s.mu.Unlock()
			return ctx.Err()
		}
	}
	s.mu.Unlock()
	s.release(1) // it was given in the same moment
	return ctx.Err()
}

// take returns how many slots a retry run gets now, at most n, without waiting.
func (s *slots) take(n int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	got := min(n, s.reserved+s.free)
	fromReserved := min(got, s.reserved)
	s.reserved -= fromReserved
	s.free -= got - fromReserved
	s.wanted = false
	return got
}

// want asks for ready to be called when there are slots again.
func (s *slots) want() {
	s.mu.Lock()
	now := s.free > 0
	s.wanted = !now
	s.mu.Unlock()
	if now {
		s.ready()
	}
}

// forgo gives back what was set aside for retries, which do not claim after all.
func (s *slots) forgo() {
	s.mu.Lock()
	n := s.reserved
	s.reserved, s.wanted = 0, false
	s.mu.Unlock()
	s.release(n)
}

// release gives back n slots.
func (s *slots) release(n int) {
	s.mu.Lock()
	notify := false
	for range n {
		switch {
		// Never more than half: whoever claims may be slow, and fresh deliveries must not wait for it.
		case s.wanted && s.reserved < (s.size+1)/2 && (s.turn || len(s.line) == 0):
			s.reserved++
			s.turn, notify = false, true
		case len(s.line) > 0:
			close(s.line[0])
			s.line = s.line[1:]
			s.turn = true
		default:
			s.free++
		}
	}
	s.mu.Unlock()
	if notify {
		s.ready()
	}
}
