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
	opened  time.Time
	due     atomic.Int64 // the deadline of writes since then, or 0

	mu   sync.RWMutex // held for writing when the handler returns: the server takes w back
	gone bool
}

func newStream(w http.ResponseWriter, r *http.Request) *stream {
	s := &stream{w: w, rc: http.NewResponseController(w), remote: streamAddr(r.RemoteAddr), opened: time.Now(), ended: make(chan struct{})}
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
	if err != nil && s.overdue() {
		err = os.ErrDeadlineExceeded
	}
	return n, err
}

// overdue says whether the deadline of a write has passed. The server then ends the stream, and tells neither the writer nor
// the handler why.
func (s *stream) overdue() bool {
	due := s.due.Load()
	return due != 0 && int64(time.Since(s.opened)) >= due
}

// SetWriteDeadline bounds the writes. Where the one before has passed it changes nothing: that has ended the stream, although
// the write may just have come through.
func (s *stream) SetWriteDeadline(t time.Time) error {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.gone {
		return net.ErrClosed
	}
	if s.overdue() {
		return os.ErrDeadlineExceeded
	}
	due := int64(0)
	if !t.IsZero() {
		due = int64(t.Sub(s.opened))
	}
	s.due.Store(due)
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
