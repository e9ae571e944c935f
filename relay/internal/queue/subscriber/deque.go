package subscriber

// deque is a double-ended queue of entries. Its zero value is empty.
type deque struct {
	list []*queueEntry
	head int
}

func (d *deque) len() int { return len(d.list) - d.head }

func (d *deque) pushBack(e *queueEntry) {
	if d.head > 0 && len(d.list) == cap(d.list) {
		n := copy(d.list, d.list[d.head:])
		clear(d.list[n:])
		d.list, d.head = d.list[:n], 0
	}
	d.list = append(d.list, e)
}

func (d *deque) pushFront(e *queueEntry) {
	if d.head > 0 {
		d.head--
		d.list[d.head] = e
		return
	}
	d.list = append([]*queueEntry{e}, d.list...)
}

func (d *deque) popFront() *queueEntry {
	e := d.list[d.head]
	d.list[d.head] = nil
	d.head++
	if d.head == len(d.list) {
		d.list, d.head = d.list[:0], 0
	}
	return e
}

func (d *deque) takeAll() []*queueEntry {
	left := d.list[d.head:]
	*d = deque{}
	return left
}
