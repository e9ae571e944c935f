package httpclient

import (
	"errors"
	"os"
	"sync"
	"syscall"
	"time"
)

const (
	// socketBufferBytes is the number of bytes that a socket accepts even if the server does not read. The rest of a
	// longer body is written on a separate goroutine while the response is read, because the response may arrive first.
	socketBufferBytes = 32 << 10
	// maxInlineBody is the maximum number of body bytes that are copied after the head. A copy costs less than a second
	// write, and less than another TLS record.
	maxInlineBody = 256 << 10
	// finalReadTimeout limits two waits: for a response that explains why the server stopped reading, and for the rest
	// of a request after its response has arrived.
	finalReadTimeout = 50 * time.Millisecond
	// drainTimeout is the time to write the rest of a request after a 2xx response, while the server still reads.
	drainTimeout = 2 * time.Second
)

// pendingWrite is the part of a request that is not written yet.
type pendingWrite struct {
	head []byte // the rest of the head and of the body bytes copied after it
	body []byte // the body bytes that were not copied

	headBuf []byte // reused buffer of head
}

var pendingWrites = sync.Pool{New: func() any { return new(pendingWrite) }}

func newPendingWrite(p *Request) *pendingWrite {
	o, ok := pendingWrites.Get().(*pendingWrite)
	if !ok {
		o = new(pendingWrite) // unreachable: the pool has only this type
	}
	inline := min(len(p.Body), maxInlineBody)
	o.headBuf = append(p.appendHead(o.headBuf[:0]), p.Body[:inline]...)
	o.head, o.body = o.headBuf, p.Body[inline:]
	return o
}

func (p *pendingWrite) release() {
	p.head, p.body = nil, nil
	pendingWrites.Put(p)
}

// writeRequest writes p, or starts to write it and sets c.writeDone. A server may respond before it has read a long
// body, or without reading it.
func (c *http1Conn) writeRequest(p *Request) error {
	o := newPendingWrite(p)
	if c.rawWrite != nil {
		if err := c.tryWrite(o); err != nil {
			o.release()
			return err
		}
	}
	if len(p.Body) <= socketBufferBytes || len(o.head)+len(o.body) == 0 {
		return c.writeRest(o)
	}
	done := make(chan error, 1)
	c.writeDone = done
	go func() {
		err := c.writeRest(o)
		done <- err
		if err != nil {
			_ = c.SetReadDeadline(time.Now().Add(finalReadTimeout))
		}
	}()
	return nil
}

// writeRest writes the remaining bytes of o.
func (c *http1Conn) writeRest(o *pendingWrite) error {
	defer o.release()
	for _, piece := range [...][]byte{o.head, o.body} {
		if len(piece) == 0 {
			continue
		}
		n, err := c.Write(piece)
		c.bytesSent += n
		if err != nil {
			return err
		}
	}
	return nil
}

// writeFinished waits up to timeout for the request to be written completely, and reports whether it is.
func (c *http1Conn) writeFinished(timeout time.Duration) bool {
	if c.writeDone == nil {
		return true
	}
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case err := <-c.writeDone:
		c.writeDone = nil
		c.sawEOF = c.sawEOF || err != nil
		return err == nil
	case <-timer.C:
		return false
	}
}

// tryWrite writes as many bytes as the socket accepts without blocking. That is usually all of them, so most long
// bodies need no goroutine.
func (c *http1Conn) tryWrite(o *pendingWrite) error {
	c.currentWrite = socketWrite{text: o.head}
	if err := c.rawWrite.Write(c.writeFunc); err != nil {
		return err
	}
	o.head, c.bytesSent = o.head[c.currentWrite.n:], c.currentWrite.n
	return c.currentWrite.err
}

// socketWrite is a non-blocking write to a socket.
type socketWrite struct {
	text []byte
	n    int
	err  error
}

// writeSocket always returns true, because the caller must not wait until the socket is writable again.
func (c *http1Conn) writeSocket(fd uintptr) bool {
	for {
		n, err := syscall.Write(int(fd), c.currentWrite.text)
		switch {
		case err == nil:
			c.currentWrite = socketWrite{n: n}
		case errors.Is(err, syscall.EINTR):
			continue
		case errors.Is(err, syscall.EAGAIN):
			c.currentWrite = socketWrite{}
		default:
			c.currentWrite = socketWrite{err: os.NewSyscallError("write", err)}
		}
		return true
	}
}
