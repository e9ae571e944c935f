package httpclient

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

// errConnClosed says that an idle connection turned out closed before a byte was sent, so that another may be tried.
var errConnClosed = errors.New("nothing was sent")

// http1Conn is a connection to one host, used by one request at a time.
type http1Conn struct {
	scheme, host string
	raw          net.Conn // below TLS
	net.Conn
	r *bufio.Reader

	idleSince       time.Time // when it became idle; zero before its first answer
	headerBytesLeft int       // how many bytes may still be read of a header
	bytesSent       int       // bytes written for this request; not to be read before written has spoken
	sawEOF          bool      // its end was read
	interrupt       func()    // ends what is under way on any goroutine

	writeDone chan error // how writing this request beside its answer has ended; nil where it was written before

	rawPeek  syscall.RawConn // nil where there is no way to look
	peekFunc func(fd uintptr) bool
	isIdle   bool // what look has seen

	rawWrite     syscall.RawConn // nil where bytes written to the socket would not be what is sent: TLS, or a connection of unknown kind
	writeFunc    func(fd uintptr) bool
	pendingWrite socketWrite
}

func newConn(u *url.URL, raw, used net.Conn) *http1Conn {
	c := &http1Conn{scheme: u.Scheme, host: u.Host, raw: raw, Conn: used}
	c.r = bufio.NewReader(c)
	c.peekFunc, c.writeFunc = c.peekSocket, c.writeSocket
	c.interrupt = func() { _ = raw.Close() }
	for below := raw; below != nil; {
		switch s := below.(type) {
		case syscall.Conn:
			if peek, err := s.SyscallConn(); err == nil {
				c.rawPeek = peek
			}
			below = nil
		case interface{ NetConn() net.Conn }: // TLS, to a proxy
			below = s.NetConn()
		default:
			below = nil
		}
	}
	if _, tcp := used.(*net.TCPConn); tcp {
		c.rawWrite = c.rawPeek
	}
	return c
}

// Read is what the buffer reads through, so that a header is bounded.
func (c *http1Conn) Read(p []byte) (int, error) {
	if c.headerBytesLeft <= 0 {
		return 0, fmt.Errorf("the header of the answer is longer than %d bytes", maxResponseHeader)
	}
	n, err := c.Conn.Read(p[:min(len(p), c.headerBytesLeft)])
	c.headerBytesLeft -= n
	c.sawEOF = c.sawEOF || err != nil
	return n, err
}

// stillIdle tells whether nothing has come while the connection was idle: neither its end nor an answer that nobody has
// asked for. Of a connection that it cannot look at it says no.
func (c *http1Conn) stillIdle() bool {
	c.isIdle = false
	return c.rawPeek != nil && c.rawPeek.Read(c.peekFunc) == nil && c.isIdle && c.buffersEmpty()
}

// buffersEmpty tells whether no layer above the socket has something that came: TLS reads ahead, and hands out one record at
// a time.
func (c *http1Conn) buffersEmpty() bool {
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

func (c *http1Conn) peekSocket(fd uintptr) bool {
	var b [1]byte
	_, _, err := syscall.Recvfrom(int(fd), b[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
	c.isIdle = errors.Is(err, syscall.EAGAIN)
	return true
}

// roundTripOn sends p over c and returns the answer, whose body gives c back. c is closed where it fails.
func (t *Transport) roundTripOn(ctx context.Context, c *http1Conn, p *Request) (*http.Response, error) {
	stop := context.AfterFunc(ctx, c.interrupt)
	resp, err := c.roundTrip(ctx, p)
	if err != nil {
		stop()
		_ = c.Close()
		return nil, contextError(ctx, err)
	}
	if resp.StatusCode/100 == 2 {
		c.writeFinished(t.drainTime) // the sender will not come back with what was not read
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
		resp.Body = &responseBody{reader: resp.Body, ctx: ctx, release: func(whole bool) { t.release(c, stop, whole && keep) }}
	}
	return resp, nil
}

// release takes c back from a request that is over, whose context can no longer cut it once stop has returned true.
func (t *Transport) release(c *http1Conn, stop func() bool, keep bool) {
	// A connection whose end was read, or more than the answer, is of no use.
	if !stop() || !keep || !c.writeFinished(finalReadTimeout) || c.sawEOF || c.r.Buffered() > 0 || c.rawPeek == nil {
		_ = c.Close()
		return
	}
	t.idle.put(c, t.IdleConnTimeout)
}

func (c *http1Conn) roundTrip(ctx context.Context, p *Request) (*http.Response, error) {
	c.headerBytesLeft, c.bytesSent, c.writeDone = maxResponseHeader, 0, nil
	var resp *http.Response
	err := c.writeRequest(p)
	if err == nil {
		resp, err = c.readResponse()
	}
	if err == nil {
		return resp, nil
	}
	if c.writeDone != nil {
		select {
		case sending := <-c.writeDone:
			if sending != nil {
				err = sending // which is why no answer came
			}
		default:
			c.interrupt()
			<-c.writeDone //nolint:errcheck // it was ended here
		}
	}
	if c.bytesSent == 0 && !c.idleSince.IsZero() && ctx.Err() == nil {
		err = errConnClosed
	}
	return nil, err
}

func (c *http1Conn) readResponse() (*http.Response, error) {
	if _, err := c.r.Peek(1); err != nil {
		return nil, err // ReadResponse would not say that it was the end
	}
	for {
		resp, err := http.ReadResponse(c.r, &postRequest)
		if err != nil {
			return nil, fmt.Errorf("read the answer: %w", err)
		}
		if resp.StatusCode/100 != 1 || resp.StatusCode == http.StatusSwitchingProtocols {
			c.headerBytesLeft = math.MaxInt
			return resp, nil
		}
	}
}

// responseBody is an answer's. Its connection can be used again when it was read to its end.
type responseBody struct {
	reader  io.Reader
	ctx     context.Context
	release func(whole bool)
	readErr error // what Read returns for good
}

func (b *responseBody) Read(p []byte) (int, error) {
	if b.readErr != nil {
		return 0, b.readErr
	}
	n, err := b.reader.Read(p)
	switch {
	case errors.Is(err, io.EOF):
		b.done(io.EOF)
	case err != nil:
		b.done(contextError(b.ctx, err))
	}
	return n, b.readErr
}

func (b *responseBody) Close() error {
	b.done(http.ErrBodyReadAfterClose)
	return nil
}

func (b *responseBody) done(err error) {
	if b.readErr == nil {
		b.readErr = err
		b.release(err == io.EOF) //nolint:errorlint // Read has made it so
	}
}
