package hub

import "time"

const (
	// A slot pauses for replayPause after each replayBurst of work, over all its holders. Otherwise a thousand replays
	// would keep the processors busy without a break, and the Go scheduler polls the network, where the next broadcast
	// arrives, only when idle and every ten milliseconds.
	replayBurst = time.Millisecond
	replayPause = time.Millisecond
)

// replaySlot is the right to work on a replay.
type replaySlot struct {
	startedAt time.Time
	worked    time.Duration // since the last pause
}

func newReplaySlots(n int) chan *replaySlot {
	slots := make(chan *replaySlot, n)
	for range n {
		slots <- &replaySlot{}
	}
	return slots
}

// acquireReplaySlot waits for a slot, which must be released.
func (h *Hub) acquireReplaySlot() *replaySlot {
	t := <-h.replaySlots
	t.startedAt = time.Now()
	return t
}

func (h *Hub) releaseReplaySlot(t *replaySlot) {
	t.worked += time.Since(t.startedAt)
	if t.worked >= replayBurst {
		t.worked = 0
		time.Sleep(replayPause)
	}
	h.replaySlots <- t
}
