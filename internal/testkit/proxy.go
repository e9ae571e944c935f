//go:build unix

package testkit

import (
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"testing"
)

// proxyBuffer is the approximate number of bytes that a Proxy buffers for a client that does not read. It is small so
// the server detects a slow client soon.
const proxyBuffer = 64 << 10

// Proxy forwards TCP connections to a server, and cuts or stalls them. Its methods may be called concurrently.
type Proxy struct {
	listener net.Listener
	target   func() string

	mu     sync.Mutex
	links  map[*link]struct{}
	closed bool
}

// StartProxy starts a proxy that runs until the test ends. For each new connection, it calls target to get the address
// of the server as host:port.
func StartProxy(t testing.TB, target func() string) *Proxy {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return StartProxyOn(t, listener, target)
}

// StartProxyOn is StartProxy with a listener of the caller, for instance one that terminates TLS. The proxy closes it.
func StartProxyOn(t testing.TB, listener net.Listener, target func() string) *Proxy {
	p := &Proxy{listener: listener, target: target, links: map[*link]struct{}{}}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { p.forward(client) })
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		p.mu.Lock()
		p.closed = true
		p.mu.Unlock()
		p.Cut()
		wg.Wait()
	})
	return p
}

// Addr returns the address of the proxy as host:port.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// Cut closes the current connections. New connections work.
func (p *Proxy) Cut() {
	for _, l := range p.activeLinks() {
		l.close()
	}
}

// Stall keeps the current connections open but forwards no more bytes on them. New connections work.
func (p *Proxy) Stall() {
	for _, l := range p.activeLinks() {
		l.stalled.Store(true)
	}
}

func (p *Proxy) activeLinks() []*link {
	p.mu.Lock()
	defer p.mu.Unlock()
	var list []*link
	for l := range p.links {
		list = append(list, l)
	}
	return list
}

// forward serves one connection until either end closes it, or until it is cut.
func (p *Proxy) forward(client net.Conn) {
	defer func() { _ = client.Close() }()
	server, err := net.Dial("tcp", p.target())
	if err != nil {
		return
	}
	l := &link{client: client, server: server, done: make(chan struct{})}
	defer l.close()
	if !p.add(l) {
		return
	}
	defer p.remove(l)
	l.shrinkBuffers()
	var wg sync.WaitGroup
	wg.Go(func() { l.copy(server, client) })
	wg.Go(func() { l.copy(client, server) })
	<-l.done
	wg.Wait()
}

// add registers a link. It returns false if the test has ended.
func (p *Proxy) add(l *link) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.links[l] = struct{}{}
	return !p.closed
}

func (p *Proxy) remove(l *link) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.links, l)
}

// link is the connection of a client and its connection to the server.
type link struct {
	client, server net.Conn
	stalled        atomic.Bool
	once           sync.Once
	done           chan struct{}
}

// copy forwards bytes until either end closes. It does not use io.Copy, because io.Copy calls splice, which buffers a
// megabyte.
func (l *link) copy(to, from net.Conn) {
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		if l.stalled.Load() {
			return
		}
		if n > 0 {
			_, failed := to.Write(buffer[:n])
			err = errors.Join(err, failed)
		}
		if err != nil {
			l.close()
			return
		}
	}
}

func (l *link) close() {
	l.once.Do(func() {
		_ = l.client.Close()
		_ = l.server.Close()
		close(l.done)
	})
}

func (l *link) shrinkBuffers() {
	if client, ok := l.client.(*net.TCPConn); ok {
		_ = client.SetWriteBuffer(proxyBuffer / 2)
	}
	if server, ok := l.server.(*net.TCPConn); ok {
		_ = server.SetReadBuffer(proxyBuffer / 2)
	}
}
