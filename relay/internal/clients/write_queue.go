package clients

// writeQueue holds the unsent frames of one client. The first may be partly written. The zero value is empty, and an
// empty queue holds no memory.
type writeQueue struct {
	frames       [][]byte
	written      int  // bytes of the first frame
	size         int  // unwritten bytes
	protectFirst bool // dropUnwritten keeps the first frame
}

func (q *writeQueue) isEmpty() bool { return len(q.frames) == 0 }

func (q *writeQueue) push(frame []byte) {
	q.frames = append(q.frames, frame)
	q.size += len(frame)
}

// putBack inserts frames before all others. The first n bytes of them have been written.
func (q *writeQueue) putBack(frames [][]byte, n int) {
	for len(frames) > 0 && n >= len(frames[0]) {
		n -= len(frames[0])
		frames = frames[1:]
	}
	if len(frames) == 0 {
		return
	}
	q.frames = append(append(make([][]byte, 0, len(frames)+len(q.frames)+4), frames...), q.frames...)
	q.written = n
	for _, frame := range frames {
		q.size += len(frame)
	}
	q.size -= n
}

// pushHandshake inserts the response to the handshake before all frames and protects it from dropUnwritten. Without
// it a client could not interpret a close frame.
func (q *writeQueue) pushHandshake(response []byte) {
	q.putBack([][]byte{response}, 0)
	q.protectFirst = true
}

// peekInto copies as much as fits into p and returns the number of bytes. It removes nothing: see advance.
func (q *writeQueue) peekInto(p []byte) int {
	n, skip := 0, q.written
	for _, frame := range q.frames {
		n += copy(p[n:], frame[skip:])
		if n == len(p) {
			break
		}
		skip = 0
	}
	return n
}

// advance removes the first n bytes.
func (q *writeQueue) advance(n int) {
	q.size -= n
	n += q.written
	done := 0
	for done < len(q.frames) && n >= len(q.frames[done]) {
		n -= len(q.frames[done])
		q.frames[done] = nil
		done++
	}
	q.frames, q.written = q.frames[done:], n
	q.protectFirst = q.protectFirst && done == 0
	if q.isEmpty() {
		q.clear()
	}
}

// dropUnwritten removes all frames that are completely unwritten, except the response to the handshake.
func (q *writeQueue) dropUnwritten() {
	if q.written == 0 && !q.protectFirst {
		q.clear()
		return
	}
	clear(q.frames[1:])
	q.frames = q.frames[:1]
	q.size = len(q.frames[0]) - q.written
}

func (q *writeQueue) clear() { *q = writeQueue{} }
