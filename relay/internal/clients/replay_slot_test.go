package clients

import (
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// The replays of one key take turns with those of another, no matter how many there are.
func TestReplaySlots_AreFair(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slots := newReplaySlots(2)
		var worked atomic.Int32
		var replays sync.WaitGroup
		done := make(chan struct{})
		for range 1000 {
			replays.Go(func() {
				for {
					select {
					case <-done:
						return
					default:
					}
					slot := slots.acquire("many")
					time.Sleep(time.Millisecond)
					worked.Add(1)
					slots.release(slot)
				}
			})
		}
		time.Sleep(time.Second)
		for range 10 {
			before := worked.Load()
			slot := slots.acquire("one")
			if n := worked.Load() - before; n > 4 {
				t.Errorf("the other key had %d turns in the meantime, want at most 4", n)
			}
			slots.release(slot)
			time.Sleep(50 * time.Millisecond)
		}
		close(done)
		replays.Wait()
		if len(slots.keys) != 0 {
			t.Errorf("%d keys are remembered", len(slots.keys))
		}
	})
}
