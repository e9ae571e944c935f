package turns

import (
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
					slot := slots.Acquire("many")
					time.Sleep(time.Millisecond)
					turns.Add(1)
					slots.Release("many", slot)
				}
			})
		}
		time.Sleep(time.Second)
		for range 10 {
			before := turns.Load()
			slot := slots.Acquire("one")
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
