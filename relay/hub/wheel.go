package hub

import (
	"math/rand/v2"
	"sync"
	"time"
)

// wheel says which clients are due for a ping. Each client sits in one random slot, so that pings are spread over the
// interval; every turn empties nothing and moves on by one slot.
type wheel struct {
	tick time.Duration

	mu    sync.Mutex
	slots [][]*client
	at    int
}

const (
	mostSlots = 50
	leastTick = 5 * time.Millisecond
)

func newWheel(interval time.Duration) *wheel {
	slots := int(min(max(interval/leastTick, 1), mostSlots))
	return &wheel{tick: max(interval/time.Duration(slots), 1), slots: make([][]*client, slots)}
}

func (w *wheel) add(c *client) {
	w.mu.Lock()
	defer w.mu.Unlock()
	c.spoke = rand.IntN(len(w.slots))
	c.onSpoke = len(w.slots[c.spoke])
	w.slots[c.spoke] = append(w.slots[c.spoke], c)
}

// remove takes c out; nothing happens where it is not in.
func (w *wheel) remove(c *client) {
	w.mu.Lock()
	defer w.mu.Unlock()
	slot := w.slots[c.spoke]
	if c.onSpoke >= len(slot) || slot[c.onSpoke] != c {
		return
	}
	last := slot[len(slot)-1]
	slot[c.onSpoke], last.onSpoke = last, c.onSpoke
	slot[len(slot)-1] = nil
	w.slots[c.spoke] = slot[:len(slot)-1]
}

// turn moves on by one slot and appends its clients to due.
func (w *wheel) turn(due []*client) []*client {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.at = (w.at + 1) % len(w.slots)
	return append(due, w.slots[w.at]...)
}
