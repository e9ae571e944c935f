package clients

import (
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// The replays of one owner take turns with the replays of another, no matter how many there are.
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
				t.Errorf("the other owner had %d turns in the meantime, want at most 4", n)
			}
			slots.release(slot)
			time.Sleep(50 * time.Millisecond)
		}
		close(done)
		replays.Wait()
		if len(slots.owners) != 0 {
			t.Errorf("%d owners are remembered", len(slots.owners))
		}
	})
}

// The keys of an account have the turns of one owner, because an identity provider may issue any number of them.
func TestReplayOwner(t *testing.T) {
	for owner, want := range map[leaseOwner]string{
		{account: "acme", key: "acme\x00a"}: "acme", {account: "acme", key: "acme\x00b"}: "acme",
		{key: "\x00ops"}: "\x00ops", {key: "*\x00ops"}: "*\x00ops",
	} {
		if got := owner.replayOwner(); got != want {
			t.Errorf("%+v: got %q, want %q", owner, got, want)
		}
	}
}
