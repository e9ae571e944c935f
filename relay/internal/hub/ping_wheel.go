package hub

import (
	"math/rand/v2"
	"sync"
	"time"
)

// pingWheel says which clients are due for a ping. Each client sits in one random slot, so that pings are spread over the
// interval; every turn empties nothing and moves on by one slot.
type pingWheel struct {
	interval time.Duration

	mu      sync.Mutex
	slots   [][]*connection
	current int
}

const (
	maxWheelSlots = 50
	minWheelTick  = 5 * time.Millisecond
)

func newPingWheel(interval time.Duration) *pingWheel {
	slots := int(min(max(interval/minWheelTick, 1), maxWheelSlots))
	return &pingWheel{interval: max(interval/time.Duration(slots), 1), slots: make([][]*connection, slots)}
}

func (w *pingWheel) add(c *connection) {
	w.mu.Lock()
	defer w.mu.Unlock()
	c.wheelSlot = rand.IntN(len(w.slots))
	c.wheelIndex = len(w.slots[c.wheelSlot])
	w.slots[c.wheelSlot] = append(w.slots[c.wheelSlot], c)
}

// remove takes c out; nothing happens where it is not in.
func (w *pingWheel) remove(c *connection) {
	w.mu.Lock()
	defer w.mu.Unlock()
	slot := w.slots[c.wheelSlot]
	if c.wheelIndex >= len(slot) || slot[c.wheelIndex] != c {
		return
	}
	last := slot[len(slot)-1]
	slot[c.wheelIndex], last.wheelIndex = last, c.wheelIndex
	slot[len(slot)-1] = nil
	w.slots[c.wheelSlot] = slot[:len(slot)-1]
}

// advance moves on by one slot and appends its clients to due.
func (w *pingWheel) advance(due []*connection) []*connection {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.current = (w.current + 1) % len(w.slots)
	return append(due, w.slots[w.current]...)
}
