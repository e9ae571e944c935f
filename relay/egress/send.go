package egress

import (
	"errors"
	"os"
	"sync"
	"syscall"
	"time"
)

const (
	// sentAtOnce is what a socket takes although the far side does not read. What it does not take of something longer is
	// written on a goroutine of its own while the answer is read, since that may come first.
	sentAtOnce = 32 << 10
	// sentTogether is how much of a body is copied behind its head: a copy costs less than a second write, and in TLS than a
	// record of its own.
	sentTogether = 256 << 10
	// lastWord is how long a receiver that stopped reading is listened to, which may have said why, and how long one that has
	// answered may take for what was not written yet.
	lastWord = 50 * time.Millisecond
	// readOn is long enough for a receiver that said yes and reads on.
	readOn = 2 * time.Second
)

// outgoing is what is left to be written of a post.
type outgoing struct {
	text []byte // the rest of what was copied
	body []byte // what was not

	memory []byte // of text
}

var outgoings = sync.Pool{New: func() any { return new(outgoing) }}

func newOutgoing(p *Post) *outgoing {
	o, ok := outgoings.Get().(*outgoing)
	if !ok {
		o = new(outgoing) // the pool holds nothing else
	}
	together := min(len(p.Body), sentTogether)
	o.memory = append(p.appendHead(o.memory[:0]), p.Body[:together]...)
	o.text, o.body = o.memory, p.Body[together:]
	return o
}

func (o *outgoing) free() {
	o.text, o.body = nil, nil
	outgoings.Put(o)
}

// send writes p, or begins to: then written is set. A receiver may answer before it has read a long body, or instead.
func (c *conn) send(p *Post) error {
	o := newOutgoing(p)
	if c.bare != nil {
		if err := c.pushNow(o); err != nil {
			o.free()
			return err
		}
	}
	if len(p.Body) <= sentAtOnce || len(o.text)+len(o.body) == 0 {
		return c.finish(o)
	}
	written := make(chan error, 1)
	c.written = written
	go func() {
		err := c.finish(o)
		written <- err
		if err != nil {
			_ = c.SetReadDeadline(time.Now().Add(lastWord))
		}
	}()
	return nil
}

// finish writes what is left.
func (c *conn) finish(o *outgoing) error {
	defer o.free()
	for _, piece := range [...][]byte{o.text, o.body} {
		if len(piece) == 0 {
			continue
		}
		n, err := c.Write(piece)
		c.sent += n
		if err != nil {
			return err
		}
	}
	return nil
}

// wrote waits that long for all of the request to be written, and tells whether it is.
func (c *conn) wrote(patience time.Duration) bool {
	if c.written == nil {
		return true
	}
	late := time.NewTimer(patience)
	defer late.Stop()
	select {
	case err := <-c.written:
		c.written = nil
		c.ending = c.ending || err != nil
		return err == nil
	case <-late.C:
		return false
	}
}

// pushNow writes what the socket takes without waiting, which mostly is all, so that a long body needs no goroutine.
func (c *conn) pushNow(o *outgoing) error {
	c.pushed = push{text: o.text}
	if err := c.bare.Write(c.pushing); err != nil {
		return err
	}
	o.text, c.sent = o.text[c.pushed.n:], c.pushed.n
	return c.pushed.err
}

// push is a write that does not wait.
type push struct {
	text []byte
	n    int
	err  error
}

// pushTo always returns true, since nobody is to wait until the socket takes more.
func (c *conn) pushTo(fd uintptr) bool {
	for {
		n, err := syscall.Write(int(fd), c.pushed.text)
		switch {
		case err == nil:
			c.pushed = push{n: n}
		case errors.Is(err, syscall.EINTR):
			continue
		case errors.Is(err, syscall.EAGAIN):
			c.pushed = push{}
		default:
			c.pushed = push{err: os.NewSyscallError("write", err)}
		}
		return true
	}
}
