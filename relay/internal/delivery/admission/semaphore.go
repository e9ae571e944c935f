package admission

import (
	"context"
	"sync"
)

// semaphore limits concurrent attempts. Its units are slots.
type semaphore struct {
	maxSize int
	// wake is called without the lock when slots were reserved for retries.
	wake func()

	mu    sync.Mutex
	size  int // from 0 to maxSize
	free  int // negative while more slots are taken than size
	queue fairQueue
}

func newSemaphore(maxSize int, wake func()) *semaphore {
	return &semaphore{maxSize: maxSize, size: maxSize, free: maxSize, wake: wake}
}

// setSize sets the number of slots, between 0 and maxSize. It takes no slot away from an attempt.
func (s *semaphore) setSize(size int) {
	s.mu.Lock()
	size = min(max(size, 0), s.maxSize)
	added := size - s.size
	s.size = size
	if added < 0 {
		s.free += added
	}
	s.mu.Unlock()
	if added > 0 {
		s.releaseSlots(added)
	}
}

// acquireSlot waits for a slot. It returns false when changed is closed, and an error when ctx or stopping ends.
func (s *semaphore) acquireSlot(ctx, stopping context.Context, changed <-chan struct{}) (acquired bool, err error) {
	s.mu.Lock()
	if s.free > 0 && len(s.queue.tickets) == 0 {
		s.free--
		s.mu.Unlock()
		return true, nil
	}
	ticket := s.queue.addTicket()
	s.mu.Unlock()
	select {
	case <-ticket:
		return true, nil
	case <-changed:
	case <-ctx.Done():
		err = ctx.Err()
	case <-stopping.Done():
		err = stopping.Err()
	}
	s.mu.Lock()
	removed := s.queue.removeTicket(ticket)
	s.mu.Unlock()
	if !removed {
		s.releaseSlots(1)
	}
	return false, err
}

// reserveSlots takes up to n slots for retries without waiting.
func (s *semaphore) reserveSlots(n int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	reserved := s.queue.takeReserved(n)
	free := max(min(n-reserved, s.free), 0)
	s.free -= free
	s.queue.wanted = 0
	return reserved + free
}

// wakeWhenFree calls wake when a slot is free for a retry.
func (s *semaphore) wakeWhenFree() {
	s.mu.Lock()
	isFree := s.free > 0
	if s.queue.wanted = s.maxSize; isFree {
		s.queue.wanted = 0
	}
	s.mu.Unlock()
	if isFree {
		s.wake()
	}
}

// releaseReserved frees the slots that were reserved since the last call of reserveSlots.
func (s *semaphore) releaseReserved() {
	s.mu.Lock()
	n := s.queue.clearReserved()
	s.mu.Unlock()
	s.releaseSlots(n)
}

// releaseSlots frees n slots.
func (s *semaphore) releaseSlots(n int) {
	s.mu.Lock()
	missing := min(n, max(-s.free, 0))
	// At most half of the slots are reserved, because a slow poll must not stop fresh deliveries.
	spare, wake := s.queue.grantUnits(n-missing, (s.size+1)/2)
	s.free += missing + spare
	s.mu.Unlock()
	if wake {
		s.wake()
	}
}
