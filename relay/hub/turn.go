package hub

import "time"

const (
	// A turn rests for turnRest whenever turnWork has gone into it, whoever had it. A thousand clients that come back would
	// else keep their processors busy without a break, and the scheduler looks for what has come from the network, as the
	// next broadcast does, only in breaks and every ten milliseconds.
	turnWork = time.Millisecond
	turnRest = time.Millisecond
)

// turn is the right to work on a replay.
type turn struct {
	began  time.Time
	worked time.Duration // since the last rest
}

func newTurns(n int) chan *turn {
	turns := make(chan *turn, n)
	for range n {
		turns <- &turn{}
	}
	return turns
}

// takeTurn waits for a turn, which must be ended.
func (h *Hub) takeTurn() *turn {
	t := <-h.turns
	t.began = time.Now()
	return t
}

func (h *Hub) endTurn(t *turn) {
	t.worked += time.Since(t.began)
	if t.worked >= turnWork {
		t.worked = 0
		time.Sleep(turnRest)
	}
	h.turns <- t
}
