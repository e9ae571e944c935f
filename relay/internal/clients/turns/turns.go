// Package turns shares slots between owners that take turns, so the work of one owner cannot delay others for long.
package turns

import "sync"

// Slots are a number of slots. A slot has a value of the caller. The methods may be called concurrently.
type Slots[T any] struct {
	free chan T

	mu     sync.Mutex
	owners map[string]*owner
}

// owner is an owner that has or wants slots.
type owner struct {
	turn  chan struct{} // lets one wait for a free slot at a time
	count int
}

// New returns slots with these values.
func New[T any](values ...T) *Slots[T] {
	s := &Slots[T]{free: make(chan T, len(values)), owners: make(map[string]*owner)}
	for _, v := range values {
		s.free <- v
	}
	return s
}

// Acquire waits for a slot. The caller must release it.
func (s *Slots[T]) Acquire(name string) T {
	s.mu.Lock()
	o := s.owners[name]
	if o == nil {
		o = &owner{turn: make(chan struct{}, 1)}
		s.owners[name] = o
	}
	o.count++
	s.mu.Unlock()
	o.turn <- struct{}{}
	slot := <-s.free
	<-o.turn
	return slot
}

// Release returns a slot of an owner.
func (s *Slots[T]) Release(name string, slot T) {
	s.free <- slot
	s.mu.Lock()
	defer s.mu.Unlock()
	o := s.owners[name]
	if o.count--; o.count == 0 {
		delete(s.owners, name)
	}
}
