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
	key       *keyReplays
}

// replaySlots gives the slots to keys in turn, so the replays of one key cannot delay those of others for long.
type replaySlots struct {
	free chan *replaySlot

	mu   sync.Mutex
	keys map[string]*keyReplays
}

// keyReplays are the replays of one API key that have or want a slot.
type keyReplays struct {
	name  string
	turns chan struct{} // limits those that wait for a free slot to the number of slots
	count int
}

func newReplaySlots(n int) *replaySlots {
	s := &replaySlots{free: make(chan *replaySlot, n), keys: make(map[string]*keyReplays)}
	for range n {
		s.free <- &replaySlot{}
	}
	return s
}

// acquire waits for a slot, which must be released.
func (s *replaySlots) acquire(key string) *replaySlot {
	s.mu.Lock()
	k := s.keys[key]
	if k == nil {
		k = &keyReplays{name: key, turns: make(chan struct{}, cap(s.free))}
		s.keys[key] = k
	}
	k.count++
	s.mu.Unlock()
	k.turns <- struct{}{}
	t := <-s.free
	t.startedAt, t.key = time.Now(), k
	return t
}

func (s *replaySlots) release(t *replaySlot) {
	t.worked += time.Since(t.startedAt)
	if t.worked >= replayBurst {
		t.worked = 0
		time.Sleep(replayPause)
	}
	k := t.key
	s.free <- t
	<-k.turns
	s.mu.Lock()
	defer s.mu.Unlock()
	if k.count--; k.count == 0 {
		delete(s.keys, k.name)
	}
}
