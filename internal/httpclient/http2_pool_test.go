package httpclient

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/internal/testkit"
	"golang.org/x/net/http2"
)

// expiring is a context whose deadline is the time of its cancellation.
type expiring struct{ context.Context }

func (e expiring) Err() error {
	if e.Context.Err() != nil {
		return context.DeadlineExceeded
	}
	return nil
}

// stuckServer is a server of HTTP/2 that does not respond to requests on its first connection. It acknowledges pings.
type stuckServer struct {
	client  *Client
	target  *Target
	arrived chan struct{} // has a value per request of the first connection
	finish  chan struct{} // lets one request of the first connection respond

	mu    sync.Mutex
	conns []string
}

func startStuckServer(t *testing.T) *stuckServer {
	t.Helper()
	s := &stuckServer{arrived: make(chan struct{}, 100), finish: make(chan struct{})}
	var useHTTP2 atomic.Bool
	useHTTP2.Store(true)
	s.client, s.target = startServer(t, "https", &useHTTP2, func(_ http.ResponseWriter, r *http.Request) {
		if s.connNumber(r.RemoteAddr) > 0 {
			return
		}
		s.arrived <- struct{}{}
		select {
		case <-s.finish:
		case <-r.Context().Done():
		}
	})
	return s
}

// connNumber returns the number of a connection that has requests, from 0.
func (s *stuckServer) connNumber(addr string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, c := range s.conns {
		if c == addr {
			return i
		}
	}
	s.conns = append(s.conns, addr)
	return len(s.conns) - 1
}

func (s *stuckServer) connCount() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.conns)
}

// start sends a request that arrives on the first connection. Its result is in the channel when it has ended.
func (s *stuckServer) start(ctx context.Context) <-chan error {
	result := make(chan error, 1)
	go func() {
		_, err := s.client.Post(ctx, s.target, nil, []byte("{}"))
		result <- err
	}()
	<-s.arrived
	return result
}

// post sends a request that gets a response unless it is on the first connection.
func (s *stuckServer) post(t *testing.T) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	_, err := s.client.Post(ctx, s.target, nil, []byte("{}"))
	return err
}

// After a timeout, requests use another connection. This happens once per connection, even if many requests time out on
// it. The old connection is closed after the last of its requests.
func TestPost_LeavesStuckHTTP2Connection(t *testing.T) {
	t.Parallel()
	s := startStuckServer(t)
	slow := s.start(t.Context())
	old := s.client.transport.http2.Load()
	var expire []context.CancelFunc
	var results []<-chan error
	for range 5 {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		expire, results = append(expire, cancel), append(results, s.start(expiring{ctx}))
	}
	for i, result := range results {
		expire[i]()
		if err := <-result; !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v, want %v", err, context.DeadlineExceeded)
		}
		if err := s.post(t); err != nil {
			t.Errorf("after timeout %d: %v", i+1, err)
		}
	}
	if n := s.connCount(); n != 2 {
		t.Errorf("got %d connections with requests, want 2", n)
	}
	if n := openConns(old); n != 1 {
		t.Errorf("got %d connections during the last request, want 1", n)
	}
	s.finish <- struct{}{}
	if err := <-slow; err != nil {
		t.Errorf("the running request: %v", err)
	}
	if n := openConns(old); n != 0 {
		t.Errorf("got %d connections after the last request, want 0", n)
	}
}

func openConns(p *http2Pool) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.conns)
}

// A canceled request does not cost its connection.
func TestPost_CancellationKeepsHTTP2Connection(t *testing.T) {
	t.Parallel()
	s := startStuckServer(t)
	ctx, cancel := context.WithCancel(t.Context())
	canceled := s.start(ctx)
	cancel()
	if err := <-canceled; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want %v", err, context.Canceled)
	}
	next := s.start(t.Context())
	s.finish <- struct{}{}
	if err := <-next; err != nil {
		t.Error(err)
	}
	if n := s.connCount(); n != 1 {
		t.Errorf("got %d connections with requests, want 1", n)
	}
}

// Close closes an HTTP/2 connection after its last request.
func TestClose_DuringHTTP2Request(t *testing.T) {
	t.Parallel()
	s := startStuckServer(t)
	running := s.start(t.Context())
	pool := s.client.transport.http2.Load()
	s.client.Close()
	if n := openConns(pool); n != 1 {
		t.Errorf("got %d connections during the request, want 1", n)
	}
	s.finish <- struct{}{}
	if err := <-running; err != nil {
		t.Error(err)
	}
	if n := openConns(pool); n != 0 {
		t.Errorf("got %d connections after the request, want 0", n)
	}
}

// A dial that ends after the last request of a retired pool closes its connection.
func TestHTTP2Pool_LateDial(t *testing.T) {
	t.Parallel()
	s := startStuckServer(t)
	dial := s.client.transport.dialer
	var dials atomic.Int32
	dialed, proceed := make(chan net.Conn, 1), make(chan struct{})
	s.client.transport.SetDialer(func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(context.WithoutCancel(ctx), network, address)
		if dials.Add(1) == 2 { // the first one finds that the server chooses HTTP/2
			dialed <- conn
			<-proceed
		}
		return conn, err
	})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := s.client.Post(ctx, s.target, nil, []byte("{}"))
		ended <- err
	}()
	conn := <-dialed
	pool := s.client.transport.http2.Load()
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want %v", err, context.Canceled)
	}
	s.client.Close()
	close(proceed)
	testkit.WaitFor(t, "the connection to be closed", func() bool {
		return errors.Is(conn.SetDeadline(time.Time{}), net.ErrClosed)
	})
	if n := openConns(pool); n != 0 {
		t.Errorf("got %d connections, want 0", n)
	}
}

// A server of HTTP/2 that sends a 2xx response before it has read the body receives the complete body.
func TestPost_HTTP2ResponseBeforeBodyIsRead(t *testing.T) {
	t.Parallel()
	const size = 1 << 20 // more than the window and the buffers of the connection
	received := make(chan int, 10)
	c, target := serveFrames(t, func(conn net.Conn) {
		_, _ = io.ReadFull(conn, make([]byte, len(http2.ClientPreface)))
		framer := http2.NewFramer(conn, conn)
		_ = framer.WriteSettings()
		n := 0
		for {
			frame, err := framer.ReadFrame()
			if err != nil {
				return
			}
			switch frame := frame.(type) {
			case *http2.HeadersFrame:
				// The index 8 of the static table of HPACK is ":status: 200".
				_ = framer.WriteHeaders(http2.HeadersFrameParam{
					StreamID: frame.StreamID, BlockFragment: []byte{0x80 | 8}, EndHeaders: true, EndStream: true,
				})
			case *http2.DataFrame:
				n += len(frame.Data())
				if frame.StreamEnded() {
					received <- n
				} else if len(frame.Data()) > 0 {
					_ = framer.WriteWindowUpdate(0, uint32(len(frame.Data())))
					_ = framer.WriteWindowUpdate(frame.StreamID, uint32(len(frame.Data())))
				}
			case *http2.RSTStreamFrame:
				received <- n
			}
		}
	})
	c.transport.drainTime = time.Hour
	ctx, cancel := context.WithCancel(t.Context())
	resp, err := c.Post(ctx, target, nil, newBody(size))
	cancel()
	if err != nil || resp.Status != http.StatusOK {
		t.Errorf("got %+v, %v", resp, err)
	}
	if n := <-received; n != size {
		t.Errorf("the server read %d bytes, want %d", n, size)
	}
}

// If a server of HTTP/2 sends a 2xx response and rejects the rest of the body, Post does not wait for drainTime.
func TestPost_HTTP2ResponseWithoutReadingBody(t *testing.T) {
	t.Parallel()
	var useHTTP2 atomic.Bool
	useHTTP2.Store(true)
	c, target := startServer(t, "https", &useHTTP2, func(http.ResponseWriter, *http.Request) {})
	c.transport.drainTime = time.Hour
	if resp, err := c.Post(t.Context(), target, nil, newBody(8<<20)); err != nil || resp.Status != http.StatusOK {
		t.Errorf("got %+v, %v", resp, err)
	}
}
