package hub

// queue is the frames that wait for one client. The first may have been written in part. The zero value is empty, and
// an empty queue holds no memory.
type queue struct {
	frames  [][]byte
	written int  // bytes of the first frame
	size    int  // bytes that are left
	pinned  bool // the first frame is not to be cut
}

func (q *queue) empty() bool { return len(q.frames) == 0 }

func (q *queue) push(frame []byte) {
	q.frames = append(q.frames, frame)
	q.size += len(frame)
}

// putBack puts frames, of which the first n bytes have been written, before all others.
func (q *queue) putBack(frames [][]byte, n int) {
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

// pin puts the answer to the handshake before everything else, where no cut reaches it: a client that gets another first
// frame cannot even say what was wrong.
func (q *queue) pin(answer []byte) {
	q.putBack([][]byte{answer}, 0)
	q.pinned = true
}

// fill copies as much as fits to p and returns how much that is. It removes nothing: see advance.
func (q *queue) fill(p []byte) int {
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
func (q *queue) advance(n int) {
	q.size -= n
	n += q.written
	done := 0
	for done < len(q.frames) && n >= len(q.frames[done]) {
		n -= len(q.frames[done])
		q.frames[done] = nil
		done++
	}
	q.frames, q.written = q.frames[done:], n
	q.pinned = q.pinned && done == 0
	if q.empty() {
		q.drop()
	}
}

// cut removes every frame of which nothing has been written, but for the answer to the handshake.
func (q *queue) cut() {
	if q.written == 0 && !q.pinned {
		q.drop()
		return
	}
	clear(q.frames[1:])
	q.frames = q.frames[:1]
	q.size = len(q.frames[0]) - q.written
}

func (q *queue) drop() { *q = queue{} }
