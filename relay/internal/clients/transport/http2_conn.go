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
func (h *HTTP2Conn) Write(p []byte) (int, error) {
	h.mu.RLock()
	defer h.mu.RUnlock()
	if h.closed {
		return 0, net.ErrClosed
	}
	h.writing.Store(true)
	defer h.writing.Store(false)
	n, err := h.w.Write(p)
	if err == nil {
		err = h.controller.Flush()
	}
	if err != nil && h.DeadlinePassed() {
		err = os.ErrDeadlineExceeded
	}
	return n, err
}

// DeadlinePassed reports whether the write deadline has passed. The server then ends the stream without giving the
// reason to the writer or the handler.
func (h *HTTP2Conn) DeadlinePassed() bool {
	due := h.writeDeadline.Load()
	return due != 0 && int64(time.Since(h.opened)) >= due
}

// SetWriteDeadline sets the deadline of all writes. After the previous deadline has passed it fails, because the server
// has ended the stream even if the write succeeded.
func (h *HTTP2Conn) SetWriteDeadline(t time.Time) error {
	h.mu.RLock()
	defer h.mu.RUnlock()
	if h.closed {
		return net.ErrClosed
	}
	if h.DeadlinePassed() {
		return os.ErrDeadlineExceeded
	}
	due := int64(0)
	if !t.IsZero() {
		due = int64(t.Sub(h.opened))
	}
	h.writeDeadline.Store(due)
	return h.controller.SetWriteDeadline(t)
}

// Done returns a channel that is closed when the handler should return.
func (h *HTTP2Conn) Done() <-chan struct{} { return h.done }

// CloseWrite lets the handler return, which ends the response.
func (h *HTTP2Conn) CloseWrite() error {
	h.once.Do(func() { close(h.done) })
	return nil
}

// Close is CloseWrite, and also interrupts a blocked write, which ends the stream.
func (h *HTTP2Conn) Close() error {
	if h.writing.Load() {
		_ = h.SetWriteDeadline(time.Now().Add(-time.Second))
	}
	return h.CloseWrite()
}

// Finish rejects further calls. The handler calls it before it returns.
func (h *HTTP2Conn) Finish() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
}

// Read returns io.EOF.
func (h *HTTP2Conn) Read([]byte) (int, error) { return 0, io.EOF }

// LocalAddr returns an empty address.
func (h *HTTP2Conn) LocalAddr() net.Addr { return streamAddr("") }

// RemoteAddr returns the address of the client.
func (h *HTTP2Conn) RemoteAddr() net.Addr { return h.remote }

// SetDeadline is not supported.
func (h *HTTP2Conn) SetDeadline(time.Time) error { return os.ErrNoDeadline }

// SetReadDeadline is not supported.
func (h *HTTP2Conn) SetReadDeadline(time.Time) error { return os.ErrNoDeadline }

type streamAddr string

func (streamAddr) Network() string  { return "tcp" }
func (a streamAddr) String() string { return string(a) }
