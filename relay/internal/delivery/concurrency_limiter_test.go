package delivery

import (
	"context"
	"testing"
)

func TestSlotsAreSharedByTurns(t *testing.T) {
	t.Parallel()
	s := newConcurrencyLimiter(2)
	readied := 0
	s.onSlots = func() { readied++ }
	if got := s.tryAcquire(5); got != 2 {
		t.Fatalf("took %d of 2 free slots", got)
	}
	s.notifyWhenFree()
	// Four fresh deliveries wait; retries want more too.
	served := make(chan int, 4)
	for i := range 4 {
		go func() {
			if s.acquire(context.Background()) == nil {
				served <- i
			}
		}()
	}
	for waiting := 0; waiting < 4; {
		s.mu.Lock()
		waiting = len(s.waiters)
		s.mu.Unlock()
	}
	s.release(1)
	<-served
	s.release(1)
	if readied != 1 {
		t.Errorf("retries were offered %d slots, want 1 of 2", readied)
	}
	if got := s.tryAcquire(2); got != 1 {
		t.Errorf("retries took %d slots, want the reserved one", got)
	}
	for range 3 {
		s.release(1)
		<-served
	}
	s.release(2)
	if s.free != 2 || s.retrySlots != 0 {
		t.Errorf("free %d, reserved %d at the end", s.free, s.retrySlots)
	}
}

func TestSlotsGivenUp(t *testing.T) {
	t.Parallel()
	s := newConcurrencyLimiter(1)
	if err := s.acquire(context.Background()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := s.acquire(ctx); err == nil {
		t.Error("got a slot that is taken")
	}
	s.release(1)
	if s.free != 1 || len(s.waiters) != 0 {
		t.Errorf("free %d, line %d", s.free, len(s.waiters))
	}
}

func TestRetriesNeverTakeAllReserved(t *testing.T) {
	t.Parallel()
	s := newConcurrencyLimiter(4)
	for range 4 {
		if err := s.acquire(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
	s.notifyWhenFree()
	s.release(4)
	if s.retrySlots != 2 || s.free != 2 {
		t.Errorf("reserved %d, free %d, want two each", s.retrySlots, s.free)
	}
}
