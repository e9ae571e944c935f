// Package turns shares slots between owners that take turns, so the work of one owner cannot delay others for long.
package turns

import (
	"context"
	"sync"
)

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

// Acquire waits for a slot, which the caller must release, until ctx ends.
func (s *Slots[T]) Acquire(ctx context.Context, name string) (slot T, acquired bool) {
	return s.AcquireIf(ctx, name, func() bool { return true })
}

// AcquireIf waits for a turn of the owner and then, if isWanted returns true, for a slot, which the caller must release. It waits
// until ctx ends.
func (s *Slots[T]) AcquireIf(ctx context.Context, name string, isWanted func() bool) (slot T, acquired bool) {
	s.mu.Lock()
	o := s.owners[name]
	if o == nil {
		o = &owner{turns: make(chan struct{}, s.perOwner)}
		s.owners[name] = o
	}
	o.count++
	s.mu.Unlock()
	select {
	case o.turns <- struct{}{}:
	case <-ctx.Done():
		s.mu.Lock()
		defer s.mu.Unlock()
		s.leaveLocked(name)
		return slot, false
	}
	if isWanted() {
		select {
		case slot = <-s.free:
			return slot, true
		case <-ctx.Done():
		}
	}
	s.endTurn(name)
	return slot, false
}

// Release returns a slot of an owner.
func (s *Slots[T]) Release(name string, slot T) {
	s.free <- slot
	s.endTurn(name)
}

func (s *Slots[T]) endTurn(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	<-s.owners[name].turns
	s.leaveLocked(name)
}

// leaveLocked ends a call of an owner.
func (s *Slots[T]) leaveLocked(name string) {
	o := s.owners[name]
	if o.count--; o.count == 0 {
		delete(s.owners, name)
	}
}
