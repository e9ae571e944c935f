package hub

import (
	"net"
	"time"

	"github.com/hubrelay/hubrelay/relay/internal/hub/frame"
	"github.com/hubrelay/hubrelay/relay/internal/hub/transport"
)

// writeBufferBytes is how much of a queue goes into one write: enough to make the system call's cost small, and one
// maximal TLS record is 16 KiB.
const writeBufferBytes = 64 << 10

// writeBuffer is where what is queued is put together for a write.
type writeBuffer [writeBufferBytes]byte

// blockingWriteBytes is how much goes into one write that may block. Such a write does not tell how far it has come, so that all
// of it has to be taken within the write timeout: a maximal TLS record, the least that costs no more.
const blockingWriteBytes = 16 << 10

// blockingBuffer is a buffer that is held while such a write blocks.
type blockingBuffer [blockingWriteBytes]byte

// startWriter makes a goroutine the owner, unless there is an owner or the 101 has not been written. The caller holds mu.
func (c *connection) startWriter() {
	if c.writing || c.handshakePending {
		return
	}
	c.writing = true
	c.spawnWriter()
}

// spawnWriter starts the owner's goroutine. The caller holds mu, so the client has not finished.
func (c *connection) spawnWriter() {
	c.hub.running.Add(1)
	go c.runWriter()
}

// finishWrite is called by an owner that may not block, after his write: he retires, or a goroutine takes over what is
// left. The caller holds mu, which is released.
func (c *connection) finishWrite(err error) {
	if err == nil && c.hasPending() {
		c.spawnWriter()
		c.mu.Unlock()
		return
	}
	c.releaseWriter(err)
}

// releaseWriter ends the ownership. The caller holds mu, which is released.
func (c *connection) releaseWriter(err error) {
	c.writing = false
	if err != nil {
		if c.state == stateLive {
			c.closeReason = ClosedByClient
			if transport.IsTimeout(err) {
				c.closeReason = ClosedSlowConsumer
			}
		}
		c.state = stateDead
		c.queue.clear()
	}
	state, done := c.state, c.readDone
	if state == stateClosing && !done {
		if c.closeTimer == nil {
			c.closeTimer = time.AfterFunc(closeAckTimeout, c.closeNow)
		} else {
			c.closeTimer.Reset(min(closeAckTimeout, c.hub.opts.CloseTimeout))
		}
	}
	c.mu.Unlock()
	c.replay.wakeUp()
	if state == stateLive {
		return
	}
	if state == stateDead {
		transport.CloseWithoutFlush(c.conn)
		c.hub.unsubscribe(c)
	} else if done {
		_ = c.conn.Close()
	} else if c.format&frame.SSE != 0 {
		transport.CloseWrite(c.conn) // nothing else tells that this is the end
	}
	if done {
		c.cleanup()
	}
}

// hasPending says whether there is something to write. The caller holds mu.
func (c *connection) hasPending() bool { return c.closeFrame != nil || !c.queue.empty() }

// copyPending copies what is to be written next to p. Only the owner may call it.
func (c *connection) copyPending(p []byte) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.queueCloseFrame()
	return c.queue.peekInto(p)
}

// queueCloseFrame puts the close frame where it belongs. Only the owner may call it, holding mu, and with no write under way:
// what is cut may not be in the middle of being written.
func (c *connection) queueCloseFrame() {
	if c.closeFrame == nil {
		return
	}
	if c.dropQueued {
		c.queue.dropUnwritten()
	}
	c.queue.push(c.closeFrame)
	c.closeFrame = nil
}

// tryFlush is the owner's one attempt to write what is queued without blocking.
func (c *connection) tryFlush() {
	if c.fd < 0 {
		c.mu.Lock()
		c.finishWrite(nil)
		return
	}
	b, _ := c.hub.buffers.Get().(*writeBuffer)
	defer c.hub.buffers.Put(b)
	c.mu.Lock()
	c.queueCloseFrame()
	n, err := c.tryWrite(b[:c.queue.peekInto(b[:])])
	c.queue.advance(n)
	c.finishWrite(err)
}

// tryWrite writes what the socket takes at once, which may be nothing. The caller holds mu, and whoever closes the socket has
// held it before, so that p cannot go to whoever the system gives the socket's number next.
func (c *connection) tryWrite(p []byte) (int, error) {
	if c.state == stateDead || c.aborted {
		return 0, net.ErrClosed
	}
	return transport.WriteNow(c.fd, p)
}

// runWriter owns the socket until the queue is empty or the connection broken.
func (c *connection) runWriter() {
	defer c.hub.running.Done()
	step := c.writeBlocking
	if c.raw != nil {
		step = c.writeWhenReady
	}
	for {
		_ = c.conn.SetWriteDeadline(time.Now().Add(c.hub.opts.WriteTimeout))
		err := step()
		if transport.IsTimeout(err) && c.raw != nil && c.closeSlowConsumer() {
			continue // once more, for the close frame
		}
		if err == nil {
			c.mu.Lock()
			more := c.hasPending()
			c.mu.Unlock()
			if more {
				continue
			}
			// A deadline that stays would end an idle stream of HTTP/2.
			_ = c.conn.SetWriteDeadline(time.Time{})
		}
		c.mu.Lock()
		if err == nil && c.hasPending() {
			c.mu.Unlock()
			continue
		}
		c.releaseWriter(err)
		return
	}
}

// writeWhenReady waits until the socket takes something and writes once. It holds no buffer while it waits, so a
// client that hangs costs its queue only.
func (c *connection) writeWhenReady() error {
	var failed error
	err := c.raw.Write(func(fd uintptr) bool {
		b, _ := c.hub.buffers.Get().(*writeBuffer)
		defer c.hub.buffers.Put(b)
		n, err := transport.WriteNow(int(fd), b[:c.copyPending(b[:])])
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
func (c *connection) writeBlocking() error {
	b, _ := c.hub.blockingBuffers.Get().(*blockingBuffer)
	defer c.hub.blockingBuffers.Put(b)
	n, err := c.conn.Write(b[:c.copyPending(b[:])])
	c.mu.Lock()
	c.queue.advance(n)
	c.mu.Unlock()
	return err
}
