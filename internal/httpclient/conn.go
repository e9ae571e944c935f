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

	"github.com/hubrelay/hubrelay/internal/netdeadline"
)

// errConnClosed reports that an idle connection was closed before any byte was sent. The request may be sent on
// another.
var errConnClosed = errors.New("nothing was sent")

// http1Conn is a connection to one host. It carries one request at a time.
type http1Conn struct {
	scheme, host string
	raw          net.Conn // below TLS
	net.Conn
	r *bufio.Reader

	idleSince       time.Time // the time at which the connection became idle; zero before its first response
	headerBytesLeft int       // the number of bytes that may still be read of a header
	bytesSent       int       // bytes written for this request; must not be read before writeDone has a result
	sawEOF          bool      // the end of the connection was read

	writeDone chan error // result of a write that runs during the read of the response; nil if no write is running

	rawPeek  syscall.RawConn // nil if the socket cannot be inspected
	peekFunc func(fd uintptr) bool
	isIdle   bool // result of peekFunc

	// rawWrite is nil if bytes must not be written directly to the socket: with TLS or an unknown type of connection.
	rawWrite     syscall.RawConn
	writeFunc    func(fd uintptr) bool
	currentWrite socketWrite
}

func newConn(u *url.URL, raw, used net.Conn) *http1Conn {
	c := &http1Conn{scheme: u.Scheme, host: u.Host, raw: raw, Conn: used}
	c.r = bufio.NewReader(c)
	c.peekFunc, c.writeFunc = c.peekSocket, c.writeSocket
	for inner := raw; inner != nil; {
		switch s := inner.(type) {
		case syscall.Conn:
			if peek, err := s.SyscallConn(); err == nil {
				c.rawPeek = peek
			}
			inner = nil
		case interface{ NetConn() net.Conn }: // TLS to a proxy
			inner = s.NetConn()
		default:
			inner = nil
		}
	}
	if _, tcp := used.(*net.TCPConn); tcp {
		c.rawWrite = c.rawPeek
	}
	return c
}

// Read reads from the connection and limits the size of a header. The buffered reader calls it.
func (c *http1Conn) Read(p []byte) (int, error) {
	if c.headerBytesLeft <= 0 {
		return 0, fmt.Errorf("the response header is longer than %d bytes", maxResponseHeader)
	}
	n, err := c.Conn.Read(p[:min(len(p), c.headerBytesLeft)])
	c.headerBytesLeft -= n
	c.sawEOF = c.sawEOF || err != nil
	return n, err
}

// stillIdle reports whether nothing has arrived since the connection became idle: neither its end nor an unsolicited
// response. It returns false if the socket cannot be inspected.
func (c *http1Conn) stillIdle() bool {
	c.isIdle = false
	return c.rawPeek != nil && c.rawPeek.Read(c.peekFunc) == nil && c.isIdle && c.buffersEmpty()
}

// buffersEmpty reports whether no layer above the socket has buffered received data. TLS reads ahead and returns one
// record at a time.
func (c *http1Conn) buffersEmpty() bool {
	if _, bare := c.Conn.(syscall.Conn); bare {
		return true
	}
	// After its deadline a socket is not read. Read returns only data that TLS has buffered.
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

// roundTripOn sends p over c and returns the response. When its body has been read or closed, c becomes idle again. On
// an error c is closed.
func (t *Transport) roundTripOn(ctx context.Context, c *http1Conn, p *Request) (*http.Response, error) {
	stop := netdeadline.InterruptAfter(ctx, c.raw)
	resp, err := c.roundTrip(ctx, p)
	if err != nil {
		c.closeAfter(!stop())
		return nil, netdeadline.Cause(ctx, err)
	}
	if resp.StatusCode/100 == 2 {
		c.writeFinished(t.drainTime) // after a 2xx the delivery is not repeated, so the server must get the whole body
	}
	keep := !resp.Close && resp.StatusCode >= 200
	if resp.Body == http.NoBody {
		t.release(c, stop, keep)
	} else {
		release := func(complete bool) { t.release(c, stop, complete && keep) }
		resp.Body = &responseBody{reader: resp.Body, ctx: ctx, release: release}
	}
	return resp, nil
}

// release returns c to the pool after a request, or closes it. After stop has returned true, the context of the request
// can no longer interrupt c.
func (t *Transport) release(c *http1Conn, stop func() bool, keep bool) {
	interrupted := !stop()
	reusable := !interrupted && keep && c.writeFinished(finalReadTimeout)
	// A connection is not reusable after its end or if it delivered more than the response.
	if !reusable || c.sawEOF || c.r.Buffered() > 0 || c.rawPeek == nil {
		c.closeAfter(interrupted)
		return
	}
	t.idle.put(c, t.IdleConnTimeout)
}

// closeAfter closes c. TLS writes a close_notify, which may block. After an interruption it is not written.
func (c *http1Conn) closeAfter(interrupted bool) {
	if interrupted {
		_ = c.raw.Close()
	}
	_ = c.Close()
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
		case writeErr := <-c.writeDone:
			if writeErr != nil {
				err = writeErr // the reason for the missing response
			}
		default:
			_ = c.raw.Close()
			<-c.writeDone //nolint:errcheck // the error is caused by Close
		}
	}
	if c.bytesSent == 0 && !c.idleSince.IsZero() && ctx.Err() == nil {
		err = errConnClosed
	}
	return nil, err
}

func (c *http1Conn) readResponse() (*http.Response, error) {
	if _, err := c.r.Peek(1); err != nil {
		return nil, err // ReadResponse would return io.ErrUnexpectedEOF instead of io.EOF
	}
	for {
		resp, err := http.ReadResponse(c.r, &postRequest)
		if err != nil {
			return nil, fmt.Errorf("read the response: %w", err)
		}
		if resp.StatusCode/100 != 1 || resp.StatusCode == http.StatusSwitchingProtocols {
			c.headerBytesLeft = math.MaxInt
			return resp, nil
		}
	}
}

// responseBody is the body of a response. Its connection is reusable after the body was read to its end.
type responseBody struct {
	reader  io.Reader
	ctx     context.Context
	release func(complete bool)
	readErr error // returned by all later calls of Read
}

func (b *responseBody) Read(p []byte) (int, error) {
	if b.readErr != nil {
		return 0, b.readErr
	}
	n, err := b.reader.Read(p)
	switch {
	case errors.Is(err, io.EOF):
		b.finish(io.EOF)
	case err != nil:
		b.finish(netdeadline.Cause(b.ctx, err))
	}
	return n, b.readErr
}

func (b *responseBody) Close() error {
	b.finish(http.ErrBodyReadAfterClose)
	return nil
}

func (b *responseBody) finish(err error) {
	if b.readErr == nil {
		b.readErr = err
		b.release(err == io.EOF) //nolint:errorlint // Read passes io.EOF unwrapped
	}
}
