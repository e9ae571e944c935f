package delivery

import (
	"context"
	"sync"
)

// concurrencyLimiter bounds how many attempts of a sink run at once. Fresh deliveries wait in line; retries are claimed only for
// slots that they hold already, so that a claim never waits. While both want slots, they get them by turns.
type concurrencyLimiter struct {
	// onSlots is called without a lock when slots were set aside for retries.
	onSlots func()

	mu             sync.Mutex
	size           int
	free           int
	waiters        []chan struct{} // fresh deliveries
	retriesWaiting bool            // retries are due and there was no slot
	retrySlots     int             // set aside for retries
	retryNext      bool            // the next slot that both want goes to a retry
}

func newConcurrencyLimiter(n int) *concurrencyLimiter {
	return &concurrencyLimiter{size: n, free: n, onSlots: func() {}}
}

// acquire waits for a slot.
func (s *concurrencyLimiter) acquire(ctx context.Context) error {
	s.mu.Lock()
	if s.free > 0 && len(s.waiters) == 0 {
		s.free--
		s.mu.Unlock()
		return nil
	}
	ticket := make(chan struct{})
	s.waiters = append(s.waiters, ticket)
	s.mu.Unlock()
	select {
	case <-ticket:
		return nil
	case <-ctx.Done():
	}
	s.mu.Lock()
	for i, other := range s.waiters {
		if other == ticket {
			s.waiters = append(s.waiters[:i:i], s.waiters[i+1:]...)
			s.mu.Unlock()
			return ctx.Err()
		}
	}
	s.mu.Unlock()
	s.release(1) // it was given in the same moment
	return ctx.Err()
}

// tryAcquire returns how many slots a retry run gets now, at most n, without waiting.
func (s *concurrencyLimiter) tryAcquire(n int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	got := min(n, s.retrySlots+s.free)
	fromReserved := min(got, s.retrySlots)
	s.retrySlots -= fromReserved
	s.free -= got - fromReserved
	s.retriesWaiting = false
	return got
}

// notifyWhenFree asks for ready to be called when there are slots again.
func (s *concurrencyLimiter) notifyWhenFree() {
	s.mu.Lock()
	now := s.free > 0
	s.retriesWaiting = !now
	s.mu.Unlock()
	if now {
		s.onSlots()
	}
}

// releaseReserved gives back what was set aside for retries, which do not claim after all.
func (s *concurrencyLimiter) releaseReserved() {
	s.mu.Lock()
	n := s.retrySlots
	s.retrySlots, s.retriesWaiting = 0, false
	s.mu.Unlock()
	s.release(n)
}

// release gives back n slots.
func (s *concurrencyLimiter) release(n int) {
	s.mu.Lock()
	notify := false
	for range n {
		switch {
		// Never more than half: whoever claims may be slow, and fresh deliveries must not wait for it.
		case s.retriesWaiting && s.retrySlots < (s.size+1)/2 && (s.retryNext || len(s.waiters) == 0):
			s.retrySlots++
			s.retryNext, notify = false, true
		case len(s.waiters) > 0:
			close(s.waiters[0])
			s.waiters = s.waiters[1:]
			s.retryNext = true
		default:
			s.free++
		}
	}
	s.mu.Unlock()
	if notify {
		s.onSlots()
	}
}
