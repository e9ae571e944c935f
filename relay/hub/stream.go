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

// stream makes a connection of an answer that stays with the server, as all of HTTP/2 do. Nothing is read from it. It may
// be used from several goroutines, one of which writes, until the handler returns.
type stream struct {
	w      http.ResponseWriter
	rc     *http.ResponseController
	remote streamAddr
	ended  chan struct{} // closed when the handler is to return
	once   sync.Once

	writing atomic.Bool

	mu   sync.RWMutex // held for writing when the handler returns: the server takes w back
	gone bool
}

func newStream(w http.ResponseWriter, r *http.Request) *stream {
	s := &stream{w: w, rc: http.NewResponseController(w), remote: streamAddr(r.RemoteAddr), ended: make(chan struct{})}
	_ = s.SetWriteDeadline(time.Time{}) // the server's own is for answers that end
	return s
}

// Write sends p at once.
func (s *stream) Write(p []byte) (int, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.gone {
		return 0, net.ErrClosed
	}
	s.writing.Store(true)
	defer s.writing.Store(false)
	n, err := s.w.Write(p)
	if err == nil {
		err = s.rc.Flush()
	}
	return n, err
}

// SetWriteDeadline bounds the writes.
func (s *stream) SetWriteDeadline(t time.Time) error {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.gone {
		return net.ErrClosed
	}
	return s.rc.SetWriteDeadline(t)
}

// CloseWrite lets the handler return, which ends the answer.
func (s *stream) CloseWrite() error {
	s.once.Do(func() { close(s.ended) })
	return nil
}

// Close ends a write that hangs, too, and the stream with it.
func (s *stream) Close() error {
	if s.writing.Load() {
		_ = s.SetWriteDeadline(time.Now().Add(-time.Second))
	}
	return s.CloseWrite()
}

// leave is called last in the handler.
func (s *stream) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gone = true
}

func (s *stream) Read([]byte) (int, error)        { return 0, io.EOF }
func (s *stream) LocalAddr() net.Addr             { return streamAddr("") }
func (s *stream) RemoteAddr() net.Addr            { return s.remote }
func (s *stream) SetDeadline(time.Time) error     { return os.ErrNoDeadline }
func (s *stream) SetReadDeadline(time.Time) error { return os.ErrNoDeadline }

type streamAddr string

func (streamAddr) Network() string  { return "tcp" }
func (a streamAddr) String() string { return string(a) }
