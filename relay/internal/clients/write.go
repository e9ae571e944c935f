package clients

import (
	"net"
	"time"

	"github.com/hubrelay/hubrelay/relay/internal/clients/frame"
	"github.com/hubrelay/hubrelay/relay/internal/clients/transport"
)

// writeBufferBytes is the maximum size of one write. It makes the cost of the system call small. A maximal TLS record
// is 16 KiB.
const writeBufferBytes = 64 << 10

// writeBuffer joins queued frames for one write.
type writeBuffer [writeBufferBytes]byte

// blockingWriteBytes is the maximum size of a write that may block. Such a write does not report progress, so all of
// it must be accepted within the write timeout. It is one maximal TLS record, because smaller writes cost more.
const blockingWriteBytes = 16 << 10

// blockingBuffer is in use while such a write blocks.
type blockingBuffer [blockingWriteBytes]byte

// startWriter starts a writer goroutine, unless the connection has an owner or the response is not written yet. The
// caller holds mu.
func (c *connection) startWriter() {
	if c.writing || c.handshakePending {
		return
	}
	c.writing = true
	c.spawnWriter()
}

// spawnWriter starts the goroutine of the owner. The caller holds mu, so cleanup has not run.
func (c *connection) spawnWriter() {
	c.server.running.Add(1)
	go c.runWriter()
}

// finishWrite is called by an owner that must not block, after its write. It ends the ownership or passes it to a
// goroutine that writes the rest. The caller holds mu, which is released.
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
			c.closeTimer.Reset(min(closeAckTimeout, c.server.opts.CloseTimeout))
		}
	}
	c.mu.Unlock()
	c.replay.wakeUp()
	if state == stateLive {
		return
	}
	if state == stateDead {
		transport.CloseWithoutFlush(c.conn)
		c.server.unsubscribe(c)
	} else if done {
		_ = c.conn.Close()
	} else if c.format&frame.SSE != 0 {
		transport.CloseWrite(c.conn) // the only way to end the stream
	}
	if done {
		c.cleanup()
	}
}

// hasPending reports whether there is something to write. The caller holds mu.
func (c *connection) hasPending() bool { return c.closeFrame != nil || !c.queue.isEmpty() }

// copyPending copies the next bytes to write to p. Only the owner may call it.
func (c *connection) copyPending(p []byte) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.queueCloseFrame()
	return c.queue.peekInto(p)
}

// queueCloseFrame queues the close frame. Only the owner may call it, with mu and between writes, because it may
// discard queued frames.
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

// tryFlush writes queued frames once, without blocking. Only the owner may call it.
func (c *connection) tryFlush() {
	if c.fd < 0 {
		c.mu.Lock()
		c.finishWrite(nil)
		return
	}
	b, _ := c.server.buffers.Get().(*writeBuffer)
	defer c.server.buffers.Put(b)
	c.mu.Lock()
	c.queueCloseFrame()
	n, err := c.tryWrite(b[:c.queue.peekInto(b[:])])
	c.queue.advance(n)
	c.finishWrite(err)
}

// tryWrite writes what the socket accepts at once, which may be nothing. The caller holds mu. The socket is closed
// only after state or aborted was set under mu, so p cannot reach another socket that reuses the file descriptor.
func (c *connection) tryWrite(p []byte) (int, error) {
	if c.state == stateDead || c.aborted {
		return 0, net.ErrClosed
	}
	return transport.WriteNow(c.fd, p)
}

// runWriter owns the socket until the queue is empty or the connection fails.
func (c *connection) runWriter() {
	defer c.server.running.Done()
	step := c.writeBlocking
	if c.raw != nil {
		step = c.writeWhenReady
	}
	for {
		_ = c.conn.SetWriteDeadline(time.Now().Add(c.server.opts.WriteTimeout))
		err := step()
		if transport.IsTimeout(err) && c.raw != nil && c.closeSlowConsumer() {
			continue // again, for the close frame
		}
		if err == nil {
			c.mu.Lock()
			more := c.hasPending()
			c.mu.Unlock()
			if more {
				continue
			}
			// A remaining deadline would end an idle HTTP/2 stream.
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

// writeWhenReady waits until the socket accepts data and writes once. It holds no buffer while it waits, so a client
// that hangs costs only its queue.
func (c *connection) writeWhenReady() error {
	var failed error
	err := c.raw.Write(func(fd uintptr) bool {
		b, _ := c.server.buffers.Get().(*writeBuffer)
		defer c.server.buffers.Put(b)
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

// writeBlocking writes once to a connection that has no raw socket.
func (c *connection) writeBlocking() error {
	b, _ := c.server.blockingBuffers.Get().(*blockingBuffer)
	defer c.server.blockingBuffers.Put(b)
	n, err := c.conn.Write(b[:c.copyPending(b[:])])
	c.mu.Lock()
	c.queue.advance(n)
	c.mu.Unlock()
	return err
}
