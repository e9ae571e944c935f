package turns

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// The work of one owner takes turns with the work of another, no matter how much there is.
func TestSlots_AreFair(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		slots := New(2, 1, 2)
		var turns atomic.Int32
		var work sync.WaitGroup
		done := make(chan struct{})
		for range 1000 {
			work.Go(func() {
				for {
					select {
					case <-done:
						return
					default:
					}
					slot, _ := slots.Acquire(t.Context(), "many")
					time.Sleep(time.Millisecond)
					turns.Add(1)
					slots.Release("many", slot)
				}
			})
		}
		time.Sleep(time.Second)
		for range 10 {
			before := turns.Load()
			slot, _ := slots.Acquire(t.Context(), "one")
			if n := turns.Load() - before; n > 4 {
				t.Errorf("the other owner had %d turns in the meantime, want at most 4", n)
			}
			slots.Release("one", slot)
			time.Sleep(50 * time.Millisecond)
		}
		close(done)
		work.Wait()
		if len(slots.owners) != 0 {
			t.Errorf("%d owners are remembered", len(slots.owners))
		}
	})
}

// Calls that end do not use up turns, whether they wait for a turn or for a slot.
func TestSlots_CallsEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		slots := New(2, 1)
		held, _ := slots.Acquire(t.Context(), "other")
		ctx, cancel := context.WithCancel(t.Context())
		for range 1000 {
			go func() {
				if _, acquired := slots.Acquire(ctx, "many"); acquired {
					t.Error("a slot was acquired that another owner has")
				}
			}()
		}
		synctest.Wait()
		cancel()
		synctest.Wait()
		if len(slots.owners) != 1 {
			t.Errorf("%d owners are remembered, want 1", len(slots.owners))
		}
		slots.Release("other", held)
		slot, acquired := slots.Acquire(t.Context(), "many")
		if !acquired {
			t.Fatal("no slot was acquired")
		}
		slots.Release("many", slot)
	})
}
