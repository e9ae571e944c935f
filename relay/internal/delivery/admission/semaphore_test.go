package admission

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
)

// takeSlot waits for a slot until ctx ends.
func takeSlot(ctx context.Context, s *semaphore) error {
	_, err := s.acquireSlot(ctx, context.Background(), nil)
	return err
}

func TestSemaphore_FreshAndRetriesAlternate(t *testing.T) {
	t.Parallel()
	readied := 0
	s := newSemaphore(2, func() { readied++ })
	if got := s.reserveSlots(5); got != 2 {
		t.Fatalf("reserveSlots(5): got %d slots, want 2", got)
	}
	s.wakeWhenFree()
	// Four fresh deliveries wait, and retries want more.
	served := make(chan int, 4)
	for i := range 4 {
		go func() {
			if takeSlot(context.Background(), s) == nil {
				served <- i
			}
		}()
	}
	for waiting := 0; waiting < 4; {
		s.mu.Lock()
		waiting = len(s.queue.tickets)
		s.mu.Unlock()
	}
	s.releaseSlots(1)
	<-served
	s.releaseSlots(1)
	if readied != 1 {
		t.Errorf("got %d wakeups for retries, want 1", readied)
	}
	if got := s.reserveSlots(2); got != 1 {
		t.Errorf("reserveSlots(2): got %d slots, want the reserved one", got)
	}
	for range 3 {
		s.releaseSlots(1)
		<-served
	}
	s.releaseSlots(2)
	if s.free != 2 || s.queue.reserved != 0 {
		t.Errorf("got %d free and %d reserved slots, want 2 and 0", s.free, s.queue.reserved)
	}
}

func TestSemaphore_CanceledAcquire(t *testing.T) {
	t.Parallel()
	s := newSemaphore(1, func() {})
	if err := takeSlot(context.Background(), s); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := takeSlot(ctx, s); err == nil {
		t.Error("acquireSlot() = nil while the slot is taken")
	}
	s.releaseSlots(1)
	if s.free != 1 || len(s.queue.tickets) != 0 {
		t.Errorf("got %d free slots and %d tickets, want 1 and 0", s.free, len(s.queue.tickets))
	}
}

func TestSemaphore_ReservesAtMostHalf(t *testing.T) {
	t.Parallel()
	s := newSemaphore(4, func() {})
	for range 4 {
		if err := takeSlot(context.Background(), s); err != nil {
			t.Fatal(err)
		}
	}
	s.wakeWhenFree()
	s.releaseSlots(4)
	if s.queue.reserved != 2 || s.free != 2 {
		t.Errorf("got %d reserved and %d free slots, want 2 each", s.queue.reserved, s.free)
	}
}

// A smaller size applies when attempts end, and a larger one at once.
func TestSemaphore_SetSize(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSemaphore(4, func() {})
		var running atomic.Int64
		acquire := func() {
			go func() {
				if takeSlot(t.Context(), s) == nil {
					running.Add(1)
				}
			}()
			synctest.Wait()
		}
		check := func(when string, want int64) {
			t.Helper()
			synctest.Wait()
			if got := running.Load(); got != want {
				t.Errorf("%s: %d slots are taken, want %d", when, got, want)
			}
		}
		for range 6 {
			acquire()
		}
		check("all slots", 4)
		s.setSize(0)
		if got := s.reserveSlots(1); got != 0 {
			t.Errorf("got %d slots for retries, want 0", got)
		}
		for range 4 {
			s.releaseSlots(1)
			running.Add(-1)
		}
		check("no slot", 0)
		s.setSize(2)
		check("two slots", 2)
		s.setSize(100) // means 4
		check("more than wanted", 2)
		if got := s.reserveSlots(3); got != 2 {
			t.Errorf("got %d slots for retries, want the other two", got)
		}
	})
}

// Retries that found no slot are woken when there is one again.
func TestSemaphore_SetSizeWakesRetries(t *testing.T) {
	t.Parallel()
	woken := 0
	s := newSemaphore(2, func() { woken++ })
	s.setSize(0)
	if got := s.reserveSlots(2); got != 0 {
		t.Errorf("got %d slots, want 0", got)
	}
	s.wakeWhenFree()
	s.setSize(1)
	if got := s.reserveSlots(2); woken != 1 || got != 1 {
		t.Errorf("got %d wakeups and %d slots, want 1 and 1", woken, got)
	}
}

// The wait for a slot ends when the state changes and when the sink stops. It takes no slot then.
func TestSemaphore_WaitEnds(t *testing.T) {
	t.Parallel()
	s := newSemaphore(1, func() {})
	s.setSize(0)
	changed := make(chan struct{})
	close(changed)
	if acquired, err := s.acquireSlot(t.Context(), context.Background(), changed); acquired || err != nil {
		t.Errorf("changed: got %t and %v, want no slot and no error", acquired, err)
	}
	stopping, stop := context.WithCancel(t.Context())
	stop()
	if acquired, err := s.acquireSlot(t.Context(), stopping, nil); acquired || err == nil {
		t.Errorf("stopped: got %t and %v, want an error", acquired, err)
	}
	s.setSize(1)
	if s.free != 1 || len(s.queue.tickets) != 0 {
		t.Errorf("got %d free slots and %d tickets, want 1 and 0", s.free, len(s.queue.tickets))
	}
}
