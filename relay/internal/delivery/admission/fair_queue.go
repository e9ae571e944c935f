package admission

import "slices"

// fairQueue distributes units, such as slots or tokens, between fresh deliveries and retries. Fresh deliveries wait
// with tickets, in order. Units for retries are reserved. While both want units, they alternate.
//
// The owner protects it with its own mutex.
type fairQueue struct {
	tickets   []chan struct{}
	wanted    int  // units that retries want
	reserved  int  // units for retries
	retryNext bool // the next unit that both want is for a retry
}

// isWanted reports whether a fresh delivery or a retry waits for a unit.
func (q *fairQueue) isWanted() bool { return len(q.tickets)+q.wanted > 0 }

// addTicket returns a ticket, which is closed when a unit is granted.
func (q *fairQueue) addTicket() chan struct{} {
	ticket := make(chan struct{})
	q.tickets = append(q.tickets, ticket)
	return ticket
}

// removeTicket removes a ticket. It returns false if the ticket has a unit already, which the caller must return.
func (q *fairQueue) removeTicket(ticket chan struct{}) bool {
	i := slices.Index(q.tickets, ticket)
	if i < 0 {
		return false
	}
	q.tickets = slices.Delete(q.tickets, i, i+1)
	return true
}

// grantUnits distributes n units. It reserves up to maxReserved of them. It returns the units that are not wanted, and
// whether units were reserved, so the owner must wake the retries.
func (q *fairQueue) grantUnits(n, maxReserved int) (spare int, wake bool) {
	for range n {
		switch {
		case q.wanted > 0 && q.reserved < maxReserved && (q.retryNext || len(q.tickets) == 0):
			q.wanted--
			q.reserved++
			q.retryNext, wake = false, true
		case len(q.tickets) > 0:
			close(q.tickets[0])
			q.tickets = q.tickets[1:]
			q.retryNext = true
		default:
			spare++
		}
	}
	return spare, wake
}

// takeReserved takes up to n reserved units.
func (q *fairQueue) takeReserved(n int) int {
	n = min(n, q.reserved)
	q.reserved -= n
	return n
}

// clearReserved ends what retries want, and returns their reserved units.
func (q *fairQueue) clearReserved() int {
	n := q.reserved
	q.reserved, q.wanted = 0, 0
	return n
}
