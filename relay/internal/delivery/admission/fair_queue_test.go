package admission

import (
	"math/rand/v2"
	"testing"
	"time"
)

// queueModel counts the units of a fairQueue, whose owner has a fixed number of them.
type queueModel struct {
	q           fairQueue
	maxReserved int
	free        int
	fresh       int             // units of fresh deliveries
	retries     int             // units of claimed retries
	granted     []chan struct{} // tickets that may have a unit
}

func (m *queueModel) release(n int) {
	spare, _ := m.q.grantUnits(n, m.maxReserved)
	m.free += spare
	waiting := m.granted[:0]
	for _, ticket := range m.granted {
		select {
		case <-ticket:
			m.fresh++
		default:
			waiting = append(waiting, ticket)
		}
	}
	m.granted = waiting
}

// Random operations never lose or create a unit, and never reserve more than allowed.
func TestFairQueue_KeepsUnits(t *testing.T) {
	t.Parallel()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	for range 300 {
		units := 1 + rng.IntN(8)
		m := queueModel{maxReserved: (units + 1) / 2, free: units}
		for step := range 400 {
			switch rng.IntN(7) {
			case 0: // a fresh delivery
				if m.free > 0 && len(m.q.tickets) == 0 {
					m.free--
					m.fresh++
					break
				}
				m.granted = append(m.granted, m.q.addTicket())
			case 1: // a fresh delivery is canceled, before its unit or at the same time
				if len(m.granted) > 0 {
					i := rng.IntN(len(m.granted))
					ticket := m.granted[i]
					if rng.IntN(2) == 0 && m.fresh > 0 { // a unit is granted first
						m.fresh--
						spare, _ := m.q.grantUnits(1, m.maxReserved)
						m.free += spare
					}
					m.granted = append(m.granted[:i], m.granted[i+1:]...)
					if !m.q.removeTicket(ticket) {
						m.release(1)
					}
				}
				m.release(0)
			case 2: // retries want units
				if m.free == 0 {
					m.q.wanted = units
				}
			case 3: // retries are claimed
				n := m.q.takeReserved(1 + rng.IntN(units))
				m.retries += n
			case 4: // no retry is due any more
				m.release(m.q.clearReserved())
			case 5: // a fresh attempt ends
				if m.fresh > 0 {
					m.fresh--
					m.release(1)
				}
			case 6: // a retry ends
				if m.retries > 0 {
					m.retries--
					m.release(1)
				}
			}
			if sum := m.free + m.fresh + m.retries + m.q.reserved; sum != units {
				t.Fatalf("step %d: got %d units, want %d", step, sum, units)
			}
			if m.q.reserved > m.maxReserved {
				t.Fatalf("step %d: got %d reserved units, want at most %d", step, m.q.reserved, m.maxReserved)
			}
			if m.free > 0 && len(m.q.tickets) > 0 {
				t.Fatalf("step %d: a fresh delivery waits while a unit is free", step)
			}
		}
	}
}

// While both classes want units, they alternate, however many units are released at once.
func TestFairQueue_Alternates(t *testing.T) {
	t.Parallel()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	const total = 1000
	retryFirst := rng.IntN(2) == 0
	q := fairQueue{wanted: total, retryNext: retryFirst}
	for range total {
		q.addTicket()
	}
	granted := 0
	for granted < total {
		n := min(1+rng.IntN(4), total-granted)
		q.grantUnits(n, total)
		granted += n
		want := granted / 2
		if retryFirst {
			want = (granted + 1) / 2
		}
		if q.reserved != want {
			t.Fatalf("got %d of %d units for retries, want %d", q.reserved, granted, want)
		}
	}
}

// Tickets are granted in the order in which they were added.
func TestFairQueue_TicketsAreFIFO(t *testing.T) {
	t.Parallel()
	var q fairQueue
	first, second, third := q.addTicket(), q.addTicket(), q.addTicket()
	if !q.removeTicket(second) {
		t.Error("removeTicket() = false for a ticket without a unit")
	}
	q.grantUnits(1, 0)
	select {
	case <-third:
		t.Error("the last ticket was granted first")
	case <-first:
	default:
		t.Error("the first ticket was not granted")
	}
	if q.removeTicket(first) {
		t.Error("removeTicket() = true for a ticket with a unit")
	}
}
