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
	turns chan struct{} // contains a value for each slot that the owner has or waits for
	count int           // of its calls that have or want a slot
}

// New returns slots with these values. An owner has or waits for at most perOwner of them. Its other calls wait for these.
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
	if !isWanted() {
		s.endTurn(name)
		return slot, false
	}
	return <-s.free, true
}

// Release returns a slot of an owner.
func (s *Slots[T]) Release(name string, slot T) {
	s.free <- slot
	s.endTurn(name)
}

func (s *Slots[T]) endTurn(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o := s.owners[name]
	<-o.turns
	if o.count--; o.count == 0 {
		delete(s.owners, name)
	}
}
