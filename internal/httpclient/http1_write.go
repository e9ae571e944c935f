package httpclient

import (
	"errors"
	"os"
	"sync"
	"syscall"
	"time"
)

const (
	// socketBufferBytes is what a socket takes although the far side does not read. What it does not take of something longer is
	// written on a goroutine of its own while the answer is read, since that may come first.
	socketBufferBytes = 32 << 10
	// maxInlineBody is how much of a body is copied behind its head: a copy costs less than a second write, and in TLS than a
	// record of its own.
	maxInlineBody = 256 << 10
	// finalReadTimeout is how long a receiver that stopped reading is listened to, which may have said why, and how long one that has
	// answered may take for what was not written yet.
	finalReadTimeout = 50 * time.Millisecond
	// drainTimeout is long enough for a receiver that said yes and reads on.
	drainTimeout = 2 * time.Second
)

// pendingWrite is what is left to be written of a post.
type pendingWrite struct {
	head []byte // the rest of what was copied
	body []byte // what was not

	headBuf []byte // of text
}

var outgoings = sync.Pool{New: func() any { return new(pendingWrite) }}

func newPendingWrite(p *Request) *pendingWrite {
	o, ok := outgoings.Get().(*pendingWrite)
	if !ok {
		o = new(pendingWrite) // the pool holds nothing else
	}
	together := min(len(p.Body), maxInlineBody)
	o.headBuf = append(p.appendHead(o.headBuf[:0]), p.Body[:together]...)
	o.head, o.body = o.headBuf, p.Body[together:]
	return o
}

func (o *pendingWrite) release() {
	o.head, o.body = nil, nil
	outgoings.Put(o)
}

// writeRequest writes p, or begins to: then written is set. A receiver may answer before it has read a long body, or instead.
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
	written := make(chan error, 1)
	c.writeDone = written
	go func() {
		err := c.writeRest(o)
		written <- err
		if err != nil {
			_ = c.SetReadDeadline(time.Now().Add(finalReadTimeout))
		}
	}()
	return nil
}

// writeRest writes what is left.
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

// writeFinished waits that long for all of the request to be written, and tells whether it is.
func (c *http1Conn) writeFinished(patience time.Duration) bool {
	if c.writeDone == nil {
		return true
	}
	late := time.NewTimer(patience)
	defer late.Stop()
	select {
	case err := <-c.writeDone:
		c.writeDone = nil
		c.sawEOF = c.sawEOF || err != nil
		return err == nil
	case <-late.C:
		return false
	}
}

// tryWrite writes what the socket takes without waiting, which mostly is all, so that a long body needs no goroutine.
func (c *http1Conn) tryWrite(o *pendingWrite) error {
	c.pendingWrite = socketWrite{text: o.head}
	if err := c.rawWrite.Write(c.writeFunc); err != nil {
		return err
	}
	o.head, c.bytesSent = o.head[c.pendingWrite.n:], c.pendingWrite.n
	return c.pendingWrite.err
}

// socketWrite is a write that does not wait.
type socketWrite struct {
	text []byte
	n    int
	err  error
}

// writeSocket always returns true, since nobody is to wait until the socket takes more.
func (c *http1Conn) writeSocket(fd uintptr) bool {
	for {
		n, err := syscall.Write(int(fd), c.pendingWrite.text)
		switch {
		case err == nil:
			c.pendingWrite = socketWrite{n: n}
		case errors.Is(err, syscall.EINTR):
			continue
		case errors.Is(err, syscall.EAGAIN):
			c.pendingWrite = socketWrite{}
		default:
			c.pendingWrite = socketWrite{err: os.NewSyscallError("write", err)}
		}
		return true
	}
}
