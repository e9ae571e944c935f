// Package turns shares slots between owners that take turns, so the work of one owner cannot delay others for long.
package turns

import "sync"

// Slots are a number of slots. A slot has a value of the caller. The methods may be called concurrently.
type Slots[T any] struct {
	free     chan T
	perOwner int

	mu     sync.Mutex
	owners map[string]*owner
}

// owner is an owner that has or wants slots.
type owner struct {
	turns chan struct{} // limits those that have a slot or wait for a free one
	count int
}

// New returns slots with these values. An owner has, or waits in the common line for, perOwner of them at a time.
func New[T any](perOwner int, values ...T) *Slots[T] {
	s := &Slots[T]{free: make(chan T, len(values)), perOwner: perOwner, owners: make(map[string]*owner)}
	for _, v := range values {
		s.free <- v
	}
	return s
}

// Acquire waits for a slot. The caller must release it.
func (s *Slots[T]) Acquire(name string) T {
	slot, _ := s.AcquireIf(name, func() bool { return true })
	return slot
}

// AcquireIf waits for a turn of the owner and then, if isWanted returns true, for a slot, which the caller must release.
func (s *Slots[T]) AcquireIf(name string, isWanted func() bool) (slot T, acquired bool) {
	s.mu.Lock()
	o := s.owners[name]
	if o == nil {
		o = &owner{turns: make(chan struct{}, s.perOwner)}
		s.owners[name] = o
	}
	o.count++
	s.mu.Unlock()
	o.turns <- struct{}{}
	if acquired = isWanted(); acquired {
		slot = <-s.free
	}
	if !acquired {
		s.leave(name)
	}
	return slot, acquired
}

// Release returns a slot of an owner.
func (s *Slots[T]) Release(name string, slot T) {
	s.free <- slot
	s.leave(name)
}

func (s *Slots[T]) leave(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o := s.owners[name]
	<-o.turns
	if o.count--; o.count == 0 {
		delete(s.owners, name)
	}
}
