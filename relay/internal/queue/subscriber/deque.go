package subscriber

// deque is a double-ended queue of entries. Its zero value is empty.
type deque struct {
	list []*queueEntry
	head int
}

func (q *deque) len() int { return len(q.list) - q.head }

func (q *deque) pushBack(e *queueEntry) {
	if q.head > 0 && len(q.list) == cap(q.list) {
		n := copy(q.list, q.list[q.head:])
		clear(q.list[n:])
		q.list, q.head = q.list[:n], 0
	}
	q.list = append(q.list, e)
}

func (q *deque) pushFront(e *queueEntry) {
	if q.head > 0 {
		q.head--
		q.list[q.head] = e
		return
	}
	q.list = append([]*queueEntry{e}, q.list...)
}

func (q *deque) popFront() *queueEntry {
	e := q.list[q.head]
	q.list[q.head] = nil
	q.head++
	if q.head == len(q.list) {
		q.list, q.head = q.list[:0], 0
	}
	return e
}

func (q *deque) takeAll() []*queueEntry {
	left := q.list[q.head:]
	*q = deque{}
	return left
}
