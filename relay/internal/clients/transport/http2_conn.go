package transport

import (
	"io"
	"net"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// HTTP2Conn is a [net.Conn] that writes the response of an HTTP/2 request, which the server owns. Reads return io.EOF.
// Until the handler returns it may be used concurrently, by at most one writer.
type HTTP2Conn struct {
	w          http.ResponseWriter
	controller *http.ResponseController
	remote     streamAddr
	done       chan struct{} // closed when the handler should return
	once       sync.Once

	writing       atomic.Bool
	opened        time.Time
	writeDeadline atomic.Int64 // the write deadline as nanoseconds since opened, or 0

	mu     sync.RWMutex // locked for writing when the handler returns, because the server then reuses w
	closed bool
}

// NewHTTP2Conn returns a connection for a request that its handler is serving.
func NewHTTP2Conn(w http.ResponseWriter, r *http.Request) *HTTP2Conn {
	s := &HTTP2Conn{
		w: w, controller: http.NewResponseController(w), remote: streamAddr(r.RemoteAddr),
		opened: time.Now(), done: make(chan struct{}),
	}
	_ = s.SetWriteDeadline(time.Time{}) // the server's deadline is meant for responses that end
	return s
}

// Write sends p and flushes.
func (s *HTTP2Conn) Write(p []byte) (int, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.closed {
		return 0, net.ErrClosed
	}
	s.writing.Store(true)
	defer s.writing.Store(false)
	n, err := s.w.Write(p)
	if err == nil {
		err = s.controller.Flush()
	}
	if err != nil && s.DeadlinePassed() {
		err = os.ErrDeadlineExceeded
	}
	return n, err
}

// DeadlinePassed reports whether the write deadline has passed. The server then ends the stream without giving the
// reason to the writer or the handler.
func (s *HTTP2Conn) DeadlinePassed() bool {
	due := s.writeDeadline.Load()
	return due != 0 && int64(time.Since(s.opened)) >= due
}

// SetWriteDeadline sets the deadline of all writes. After the previous deadline has passed it fails, because the server
// has ended the stream even if the write succeeded.
func (s *HTTP2Conn) SetWriteDeadline(t time.Time) error {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.closed {
		return net.ErrClosed
	}
	if s.DeadlinePassed() {
		return os.ErrDeadlineExceeded
	}
	due := int64(0)
	if !t.IsZero() {
		due = int64(t.Sub(s.opened))
	}
	s.writeDeadline.Store(due)
	return s.controller.SetWriteDeadline(t)
}

// Done returns a channel that is closed when the handler should return.
func (s *HTTP2Conn) Done() <-chan struct{} { return s.done }

// CloseWrite lets the handler return, which ends the response.
func (s *HTTP2Conn) CloseWrite() error {
	s.once.Do(func() { close(s.done) })
	return nil
}

// Close is CloseWrite, and also interrupts a blocked write, which ends the stream.
func (s *HTTP2Conn) Close() error {
	if s.writing.Load() {
		_ = s.SetWriteDeadline(time.Now().Add(-time.Second))
	}
	return s.CloseWrite()
}

// Finish rejects further calls. The handler calls it before it returns.
func (s *HTTP2Conn) Finish() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
}

// Read returns io.EOF.
func (s *HTTP2Conn) Read([]byte) (int, error) { return 0, io.EOF }

// LocalAddr returns an empty address.
func (s *HTTP2Conn) LocalAddr() net.Addr { return streamAddr("") }

// RemoteAddr returns the address of the client.
func (s *HTTP2Conn) RemoteAddr() net.Addr { return s.remote }

// SetDeadline is not supported.
func (s *HTTP2Conn) SetDeadline(time.Time) error { return os.ErrNoDeadline }

// SetReadDeadline is not supported.
func (s *HTTP2Conn) SetReadDeadline(time.Time) error { return os.ErrNoDeadline }

type streamAddr string

func (streamAddr) Network() string  { return "tcp" }
func (a streamAddr) String() string { return string(a) }
