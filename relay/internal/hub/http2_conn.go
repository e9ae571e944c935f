package hub

import (
	"io"
	"net"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// http2Conn adapts a response that stays with the server, as in HTTP/2, to a connection. It does not support reading.
// Several goroutines may use it, with one writer, until the handler returns.
type http2Conn struct {
	w          http.ResponseWriter
	controller *http.ResponseController
	remote     streamAddr
	done       chan struct{} // closed when the handler is to return
	once       sync.Once

	writing       atomic.Bool
	opened        time.Time
	writeDeadline atomic.Int64 // the deadline of writes since then, or 0

	mu     sync.RWMutex // held for writing when the handler returns: the server takes w back
	closed bool
}

func newStream(w http.ResponseWriter, r *http.Request) *http2Conn {
	s := &http2Conn{
		w: w, controller: http.NewResponseController(w), remote: streamAddr(r.RemoteAddr), opened: time.Now(),
		done: make(chan struct{}),
	}
	_ = s.SetWriteDeadline(time.Time{}) // the server's own is for answers that end
	return s
}

// Write sends p at once.
func (s *http2Conn) Write(p []byte) (int, error) {
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
	if err != nil && s.deadlinePassed() {
		err = os.ErrDeadlineExceeded
	}
	return n, err
}

// deadlinePassed reports whether the deadline of a write has passed. The server then ends the stream without telling
// the writer or the handler why.
func (s *http2Conn) deadlinePassed() bool {
	due := s.writeDeadline.Load()
	return due != 0 && int64(time.Since(s.opened)) >= due
}

// SetWriteDeadline sets the deadline of writes. If the previous one has passed, it changes nothing, because the stream
// has ended, even if the write succeeded.
func (s *http2Conn) SetWriteDeadline(t time.Time) error {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.closed {
		return net.ErrClosed
	}
	if s.deadlinePassed() {
		return os.ErrDeadlineExceeded
	}
	due := int64(0)
	if !t.IsZero() {
		due = int64(t.Sub(s.opened))
	}
	s.writeDeadline.Store(due)
	return s.controller.SetWriteDeadline(t)
}

// CloseWrite lets the handler return, which ends the answer.
func (s *http2Conn) CloseWrite() error {
	s.once.Do(func() { close(s.done) })
	return nil
}

// Close ends a write that hangs, too, and the stream with it.
func (s *http2Conn) Close() error {
	if s.writing.Load() {
		_ = s.SetWriteDeadline(time.Now().Add(-time.Second))
	}
	return s.CloseWrite()
}

// finish is called last in the handler.
func (s *http2Conn) finish() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
}

func (s *http2Conn) Read([]byte) (int, error)        { return 0, io.EOF }
func (s *http2Conn) LocalAddr() net.Addr             { return streamAddr("") }
func (s *http2Conn) RemoteAddr() net.Addr            { return s.remote }
func (s *http2Conn) SetDeadline(time.Time) error     { return os.ErrNoDeadline }
func (s *http2Conn) SetReadDeadline(time.Time) error { return os.ErrNoDeadline }

type streamAddr string

func (streamAddr) Network() string  { return "tcp" }
func (a streamAddr) String() string { return string(a) }
