package hub

import "time"

const (
	// A slot rests for replayPause after replayBurst of work, for all replays that used it. Otherwise a thousand
	// returning clients would keep the processors busy without a break. The scheduler polls the network, and thus the
	// next broadcast, only in breaks and every ten milliseconds.
	replayBurst = time.Millisecond
	replayPause = time.Millisecond
)

// replaySlot is the right to work on a replay.
type replaySlot struct {
	startedAt time.Time
	worked    time.Duration // since the last rest
}

func newReplaySlots(n int) chan *replaySlot {
	turns := make(chan *replaySlot, n)
	for range n {
		turns <- &replaySlot{}
	}
	return turns
}

// acquireReplaySlot waits for a turn, which must be ended.
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
