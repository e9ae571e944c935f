package clients

import (
	"math/rand/v2"
	"sync"
	"time"
)

// pingWheel selects the clients that are due for a ping. Each client is in one random slot, which spreads the pings
// over the interval.
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

// remove removes c if it is in the wheel.
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

// advance moves to the next slot and appends its clients to due.
func (w *pingWheel) advance(due []*connection) []*connection {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.current = (w.current + 1) % len(w.slots)
	return append(due, w.slots[w.current]...)
}
