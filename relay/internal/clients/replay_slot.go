package clients

import (
	"sync"
	"time"
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
	owner     *ownerReplays
}

// replaySlots gives the slots in turn to accounts, and to keys without one, so the replays of an owner cannot delay others for long.
type replaySlots struct {
	free chan *replaySlot

	mu     sync.Mutex
	owners map[string]*ownerReplays
}

// ownerReplays are the replays of one owner that have or want a slot.
type ownerReplays struct {
	name  string
	turns chan struct{} // limits those that wait for a free slot to the number of slots
	count int
}

func newReplaySlots(n int) *replaySlots {
	s := &replaySlots{free: make(chan *replaySlot, n), owners: make(map[string]*ownerReplays)}
	for range n {
		s.free <- &replaySlot{}
	}
	return s
}

// acquire waits for a slot, which must be released.
func (s *replaySlots) acquire(owner string) *replaySlot {
	s.mu.Lock()
	o := s.owners[owner]
	if o == nil {
		o = &ownerReplays{name: owner, turns: make(chan struct{}, cap(s.free))}
		s.owners[owner] = o
	}
	o.count++
	s.mu.Unlock()
	o.turns <- struct{}{}
	t := <-s.free
	t.startedAt, t.owner = time.Now(), o
	return t
}

func (s *replaySlots) release(t *replaySlot) {
	t.worked += time.Since(t.startedAt)
	if t.worked >= replayBurst {
		t.worked = 0
		time.Sleep(replayPause)
	}
	o := t.owner
	s.free <- t
	<-o.turns
	s.mu.Lock()
	defer s.mu.Unlock()
	if o.count--; o.count == 0 {
		delete(s.owners, o.name)
	}
}
