package clients

import (
	"context"
	"time"

	"github.com/hubrelay/hubrelay/relay/internal/clients/turns"
)

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
	owner     string
}

// replaySlots gives the slots in turn to accounts, and to keys without one.
type replaySlots struct{ slots *turns.Slots[*replaySlot] }

func newReplaySlots(n int) *replaySlots {
	list := make([]*replaySlot, n)
	for i := range list {
		list[i] = &replaySlot{}
	}
	return &replaySlots{turns.New(n, list...)}
}

// acquire waits for a slot, which must be released, until ctx ends. Then it returns nil.
func (s *replaySlots) acquire(ctx context.Context, owner string) *replaySlot {
	t, acquired := s.slots.Acquire(ctx, owner)
	if acquired {
		t.startedAt, t.owner = time.Now(), owner
	}
	return t
}

func (s *replaySlots) release(t *replaySlot) {
	t.worked += time.Since(t.startedAt)
	if t.worked >= replayBurst {
		t.worked = 0
		time.Sleep(replayPause)
	}
	s.slots.Release(t.owner, t)
}
