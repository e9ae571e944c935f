package egress

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/url"
	"os"
	"syscall"
	"time"
)

// errNothingSent says that an idle connection turned out closed before a byte was sent, so that another may be tried.
var errNothingSent = errors.New("nothing was sent")

// conn is a connection to one host, used by one request at a time.
type conn struct {
	scheme, host string
	raw          net.Conn // below TLS
	net.Conn
	r *bufio.Reader

	since  time.Time // when it became idle; zero before its first answer
	room   int       // how many bytes may still be read of a header
	sent   int       // bytes written for this request; not to be read before written has spoken
	ending bool      // its end was read
	cut    func()    // ends what is under way on any goroutine

	written chan error // how writing this request beside its answer has ended; nil where it was written before

	peek  syscall.RawConn // nil where there is no way to look
	look  func(fd uintptr) bool
	quiet bool // what look has seen

	bare    syscall.RawConn // nil where bytes written to the socket would not be what is sent: TLS, or a connection of unknown kind
	pushing func(fd uintptr) bool
	pushed  push
}

func newConn(u *url.URL, raw, used net.Conn) *conn {
	c := &conn{scheme: u.Scheme, host: u.Host, raw: raw, Conn: used}
	c.r = bufio.NewReader(c)
	c.look, c.pushing = c.lookAt, c.pushTo
	c.cut = func() { _ = raw.Close() }
	for below := raw; below != nil; {
		switch s := below.(type) {
		case syscall.Conn:
			if peek, err := s.SyscallConn(); err == nil {
				c.peek = peek
			}
			below = nil
		case interface{ NetConn() net.Conn }: // TLS, to a proxy
			below = s.NetConn()
		default:
			below = nil
		}
	}
	if _, tcp := used.(*net.TCPConn); tcp {
		c.bare = c.peek
	}
	return c
}

// Read is what the buffer reads through, so that a header is bounded.
func (c *conn) Read(p []byte) (int, error) {
	if c.room <= 0 {
		return 0, fmt.Errorf("the header of the answer is longer than %d bytes", headerAnswer)
	}
	n, err := c.Conn.Read(p[:min(len(p), c.room)])
	c.room -= n
	c.ending = c.ending || err != nil
	return n, err
}

// isQuiet tells whether nothing has come while the connection was idle: neither its end nor an answer that nobody has
// asked for. Of a connection that it cannot look at it says no.
func (c *conn) isQuiet() bool {
	c.quiet = false
	return c.peek != nil && c.peek.Read(c.look) == nil && c.quiet && c.holdsNothing()
}

// holdsNothing tells whether no layer above the socket has something that came: TLS reads ahead, and hands out one record at
// a time.
func (c *conn) holdsNothing() bool {
	if _, bare := c.Conn.(syscall.Conn); bare {
		return true
	}
	// Nothing is read of a socket behind its deadline, only what is there already.
	if c.SetReadDeadline(time.Unix(1, 0)) != nil {
		return false
	}
	var b [1]byte
	_, err := c.Conn.Read(b[:])
	return errors.Is(err, os.ErrDeadlineExceeded) && c.SetReadDeadline(time.Time{}) == nil
}

func (c *conn) lookAt(fd uintptr) bool {
	var b [1]byte
	_, _, err := syscall.Recvfrom(int(fd), b[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
	c.quiet = errors.Is(err, syscall.EAGAIN)
	return true
}

// exchange sends p over c and returns the answer, whose body gives c back. c is closed where it fails.
func (t *Transport) exchange(ctx context.Context, c *conn, p *Post) (*http.Response, error) {
	stop := context.AfterFunc(ctx, c.cut)
	resp, err := c.roundTrip(ctx, p)
	if err != nil {
		stop()
		_ = c.Close()
		return nil, ended(ctx, err)
	}
	if resp.StatusCode/100 == 2 {
		c.wrote(t.readOn) // the sender will not come back with what was not read
	}
	keep := !resp.Close && resp.StatusCode >= 200
	switch {
	case resp.StatusCode == http.StatusSwitchingProtocols:
		// Nothing of HTTP follows, and nobody here speaks anything else.
		resp.Body = http.NoBody
		t.release(c, stop, false)
	case resp.Body == http.NoBody:
		t.release(c, stop, keep)
	default:
		resp.Body = &body{of: resp.Body, ctx: ctx, release: func(whole bool) { t.release(c, stop, whole && keep) }}
	}
	return resp, nil
}

// release takes c back from a request that is over, whose context can no longer cut it once stop has returned true.
func (t *Transport) release(c *conn, stop func() bool, keep bool) {
	// A connection whose end was read, or more than the answer, is of no use.
	if !stop() || !keep || !c.wrote(lastWord) || c.ending || c.r.Buffered() > 0 || c.peek == nil {
		_ = c.Close()
		return
	}
	t.idle.put(c, t.IdleConnTimeout)
}

func (c *conn) roundTrip(ctx context.Context, p *Post) (*http.Response, error) {
	c.room, c.sent, c.written = headerAnswer, 0, nil
	var resp *http.Response
	err := c.send(p)
	if err == nil {
		resp, err = c.answer()
	}
	if err == nil {
		return resp, nil
	}
	if c.written != nil {
		select {
		case sending := <-c.written:
			if sending != nil {
				err = sending // which is why no answer came
			}
		default:
			c.cut()
			<-c.written //nolint:errcheck // it was ended here
		}
	}
	if c.sent == 0 && !c.since.IsZero() && ctx.Err() == nil {
		err = errNothingSent
	}
	return nil, err
}

func (c *conn) answer() (*http.Response, error) {
	if _, err := c.r.Peek(1); err != nil {
		return nil, err // ReadResponse would not say that it was the end
	}
	for {
		resp, err := http.ReadResponse(c.r, &posted)
		if err != nil {
			return nil, fmt.Errorf("read the answer: %w", err)
		}
		if resp.StatusCode/100 != 1 || resp.StatusCode == http.StatusSwitchingProtocols {
			c.room = math.MaxInt
			return resp, nil
		}
	}
}

// body is an answer's. Its connection can be used again when it was read to its end.
type body struct {
	of      io.Reader
	ctx     context.Context
	release func(whole bool)
	over    error // what Read returns for good
}

func (b *body) Read(p []byte) (int, error) {
	if b.over != nil {
		return 0, b.over
	}
	n, err := b.of.Read(p)
	switch {
	case errors.Is(err, io.EOF):
		b.finish(io.EOF)
	case err != nil:
		b.finish(ended(b.ctx, err))
	}
	return n, b.over
}

func (b *body) Close() error {
	b.finish(http.ErrBodyReadAfterClose)
	return nil
}

func (b *body) finish(err error) {
	if b.over == nil {
		b.over = err
		b.release(err == io.EOF) //nolint:errorlint // Read has made it so
	}
}
