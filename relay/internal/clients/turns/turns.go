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
	turns chan struct{} // limits those that wait for a free slot to the number of slots
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
		o = &owner{turns: make(chan struct{}, cap(s.free))}
		s.owners[name] = o
	}
	o.count++
	s.mu.Unlock()
	o.turns <- struct{}{}
	return <-s.free
}

// Release returns a slot of an owner.
func (s *Slots[T]) Release(name string, slot T) {
	s.free <- slot
	s.mu.Lock()
	defer s.mu.Unlock()
	o := s.owners[name]
	<-o.turns
	if o.count--; o.count == 0 {
		delete(s.owners, name)
	}
}
