package hub

import "time"

const (
	// A turn rests for turnRest whenever turnWork has gone into it, whoever had it. A thousand clients that come back would
	// else keep their processors busy without a break, and the scheduler looks for what has come from the network, as the
	// next broadcast does, only in breaks and every ten milliseconds.
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
