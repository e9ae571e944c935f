package httpclient

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptrace"
	"sync"
	"time"
)

// http2Pool holds the HTTP/2 connections of a Transport. After a request without a response in time, the Transport
// retires its pool and creates another one.
//
// net/http keeps a connection that acknowledges a ping after such a request. But a server acknowledges pings even if all
// its handlers are stuck. A load balancer may then have working servers for new connections.
type http2Pool struct {
	transport *http.Transport

	mu      sync.Mutex
	running int                     // requests whose response is not closed
	retired bool                    // no request may start
	conns   map[*http2Conn]struct{} // the open connections
}

// beginRequest starts a request. It returns false if the pool is retired.
func (p *http2Pool) beginRequest() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.retired {
		return false
	}
	p.running++
	return true
}

// endRequest ends a request. The last request of a retired pool closes the connections, because net/http would keep them
// until idleTimeout.
func (p *http2Pool) endRequest() {
	p.mu.Lock()
	p.running--
	unused := p.unusedConns()
	p.mu.Unlock()
	closeHTTP2(unused)
}

// retirePool closes the idle connections. The others close when the running requests have ended.
func (p *http2Pool) retirePool() {
	p.mu.Lock()
	p.retired = true
	unused := p.unusedConns()
	p.mu.Unlock()
	closeHTTP2(unused)
	p.transport.CloseIdleConnections() // also cancels dials for which no request waits
}

// unusedConns returns all connections of a retired pool without requests. The caller must hold p.mu.
func (p *http2Pool) unusedConns() []*http2Conn {
	if !p.retired || p.running > 0 {
		return nil
	}
	unused := make([]*http2Conn, 0, len(p.conns))
	for c := range p.conns {
		unused = append(unused, c)
	}
	return unused
}

func closeHTTP2(conns []*http2Conn) {
	for _, c := range conns {
		_ = c.Close()
	}
}

// add stores a new connection. It returns false if no request can use it: net/http continues to dial after the end of a
// request.
func (p *http2Pool) add(c *http2Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.retired && p.running == 0 {
		return false
	}
	p.conns[c] = struct{}{}
	return true
}

func (p *http2Pool) remove(c *http2Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, c)
}

// beginHTTP2Request starts a request in the current pool.
func (t *Transport) beginHTTP2Request() *http2Pool {
	for {
		if p := t.http2.Load(); p.beginRequest() {
			return p
		}
	}
}

// retireHTTP2 replaces p by a new pool. It does nothing if another request has done so.
func (t *Transport) retireHTTP2(p *http2Pool) {
	if t.http2.CompareAndSwap(p, t.newHTTP2()) {
		p.retirePool()
	}
}

// postHTTP2 sends r over HTTP/2.
func (t *Transport) postHTTP2(ctx context.Context, r *Request) (*http.Response, error) {
	pool := t.beginHTTP2Request()
	progress := requestProgress{written: make(chan struct{}, 1)}
	resp, err := pool.transport.RoundTrip(r.ToHTTP(progress.addTrace(withDialCount(ctx))))
	if err != nil {
		// A canceled request, for example at shutdown, is not the fault of the connection.
		if progress.hasConn && errors.Is(ctx.Err(), context.DeadlineExceeded) {
			t.retireHTTP2(pool)
		}
		pool.endRequest()
		if progress.hasConn {
			err = &http2Error{err}
		}
		return nil, err
	}
	if resp.StatusCode/100 == 2 {
		progress.waitWritten(ctx, t.drainTime) // as in HTTP/1.1: the server must get the whole body
	}
	resp.Body = &http2Body{resp.Body, sync.OnceFunc(pool.endRequest)}
	return resp, nil
}

// http2Error is an error after the request got a connection. net/http does not export the types of most of these errors, so it
// also matches [io.ErrUnexpectedEOF], the error of an HTTP/1.1 connection that ends without a response.
type http2Error struct{ err error }

func (e *http2Error) Error() string   { return e.err.Error() }
func (e *http2Error) Unwrap() []error { return []error{e.err, io.ErrUnexpectedEOF} }

// requestProgress is the progress of a request that net/http sends.
type requestProgress struct {
	hasConn bool          // belongs to the goroutine of RoundTrip
	written chan struct{} // has a value after the request was written, or after its write has failed
}

func (p *requestProgress) addTrace(ctx context.Context) context.Context {
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn: func(httptrace.GotConnInfo) {
			p.hasConn = true
			select {
			case <-p.written: // on an earlier connection
			default:
			}
		},
		WroteRequest: func(httptrace.WroteRequestInfo) {
			select {
			case p.written <- struct{}{}:
			default:
			}
		},
	})
}

// waitWritten waits up to timeout until the request is written.
func (p *requestProgress) waitWritten(ctx context.Context, timeout time.Duration) {
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case <-p.written:
	case <-timer.C:
	case <-ctx.Done():
	}
}

// http2Body ends a request when it is closed.
type http2Body struct {
	io.ReadCloser
	release func()
}

func (b *http2Body) Close() error {
	err := b.ReadCloser.Close()
	b.release()
	return err
}
