package hub

import (
	"net"
	"time"
)

// gatherBytes is how much of a queue goes into one write: enough to make the system call's cost small, and one
// maximal TLS record is 16 KiB.
const gatherBytes = 64 << 10

// buffer is where what is queued is put together for a write.
type buffer [gatherBytes]byte

// blockingBytes is how much goes into one write that may block. Such a write does not tell how far it has come, so that all
// of it has to be taken within the write timeout: a maximal TLS record, the least that costs no more.
const blockingBytes = 16 << 10

// record is a buffer that is held while such a write blocks.
type record [blockingBytes]byte

// start makes a goroutine the owner, unless there is an owner or the 101 has not been written. The caller holds mu.
func (c *client) start() {
	if c.writing || c.held {
		return
	}
	c.writing = true
	c.spawn()
}

// spawn starts the owner's goroutine. The caller holds mu, so the client has not finished.
func (c *client) spawn() {
	c.hub.gone.Add(1)
	go c.drain()
}

// handOver is called by an owner that may not block, after his write: he retires, or a goroutine takes over what is
// left. The caller holds mu, which is released.
func (c *client) handOver(err error) {
	if err == nil && c.pending() {
		c.spawn()
		c.mu.Unlock()
		return
	}
	c.retire(err)
}

// retire ends the ownership. The caller holds mu, which is released.
func (c *client) retire(err error) {
	c.writing = false
	if err != nil {
		if c.state == live {
			c.ending = EndedByClient
			if timedOut(err) {
				c.ending = EndedSlow
			}
		}
		c.state = dead
		c.queue.drop()
	}
	state, done := c.state, c.readDone
	if state == leaving && !done {
		if c.killer == nil {
			c.killer = time.AfterFunc(lingerTimeout, c.abort)
		} else {
			c.killer.Reset(min(lingerTimeout, c.hub.opts.CloseTimeout))
		}
	}
	c.mu.Unlock()
	c.replay.poke()
	if state == live {
		return
	}
	if state == dead {
		hangUp(c.conn)
		c.hub.silence(c)
	} else if done {
		_ = c.conn.Close()
	} else if c.form&asEvent != 0 {
		halfClose(c.conn) // nothing else tells that this is the end
	}
	if done {
		c.finish()
	}
}

// pending says whether there is something to write. The caller holds mu.
func (c *client) pending() bool { return c.last != nil || !c.queue.empty() }

// fill copies what is to be written next to p. Only the owner may call it.
func (c *client) fill(p []byte) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.arrange()
	return c.queue.fill(p)
}

// arrange puts the close frame where it belongs. Only the owner may call it, holding mu, and with no write under way:
// what is cut may not be in the middle of being written.
func (c *client) arrange() {
	if c.last == nil {
		return
	}
	if c.cut {
		c.queue.cut()
	}
	c.queue.push(c.last)
	c.last = nil
}

// flush is the owner's one attempt to write what is queued without blocking.
func (c *client) flush() {
	if c.fd < 0 {
		c.mu.Lock()
		c.handOver(nil)
		return
	}
	b, _ := c.hub.buffers.Get().(*buffer)
	defer c.hub.buffers.Put(b)
	c.mu.Lock()
	c.arrange()
	n, err := c.offer(b[:c.queue.fill(b[:])])
	c.queue.advance(n)
	c.handOver(err)
}

// offer writes what the socket takes at once, which may be nothing. The caller holds mu, and whoever closes the socket has
// held it before, so that p cannot go to whoever the system gives the socket's number next.
func (c *client) offer(p []byte) (int, error) {
	if c.state == dead || c.aborted {
		return 0, net.ErrClosed
	}
	return writeNow(c.fd, p)
}

// drain owns the socket until the queue is empty or the connection broken.
func (c *client) drain() {
	defer c.hub.gone.Done()
	step := c.writeBlocking
	if c.raw != nil {
		step = c.writeWhenReady
	}
	for {
		_ = c.conn.SetWriteDeadline(time.Now().Add(c.hub.opts.WriteTimeout))
		err := step()
		if timedOut(err) && c.raw != nil && c.closeSlow() {
			continue // once more, for the close frame
		}
		if err == nil {
			c.mu.Lock()
			more := c.pending()
			c.mu.Unlock()
			if more {
				continue
			}
			// A deadline that stays would end an idle stream of HTTP/2.
			_ = c.conn.SetWriteDeadline(time.Time{})
		}
		c.mu.Lock()
		if err == nil && c.pending() {
			c.mu.Unlock()
			continue
		}
		c.retire(err)
		return
	}
}

// writeWhenReady waits until the socket takes something and writes once. It holds no buffer while it waits, so a
// client that hangs costs its queue only.
func (c *client) writeWhenReady() error {
	var failed error
	err := c.raw.Write(func(fd uintptr) bool {
		b, _ := c.hub.buffers.Get().(*buffer)
		defer c.hub.buffers.Put(b)
		n, err := writeNow(int(fd), b[:c.fill(b[:])])
		if n == 0 && err == nil {
			return false
		}
		failed = err
		c.mu.Lock()
		c.queue.advance(n)
		c.mu.Unlock()
		return true
	})
	if err == nil {
		err = failed
	}
	return err
}

// writeBlocking writes once to a connection that we cannot write to directly.
func (c *client) writeBlocking() error {
	b, _ := c.hub.records.Get().(*record)
	defer c.hub.records.Put(b)
	n, err := c.conn.Write(b[:c.fill(b[:])])
	c.mu.Lock()
	c.queue.advance(n)
	c.mu.Unlock()
	return err
}
