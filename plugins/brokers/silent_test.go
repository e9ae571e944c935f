package brokers

import (
	"net"
	"sync"
	"testing"
)

// proxy passes connections on until it swallows them.
type proxy struct {
	address string

	mu       sync.Mutex
	swallows chan struct{} // closed for the connections that there are
}

func newProxy(t *testing.T, to string) *proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{address: l.Addr().String(), swallows: make(chan struct{})}
	end := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			p.mu.Lock()
			swallows := p.swallows
			p.mu.Unlock()
			wg.Go(func() { pass(in, to, swallows, end) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		close(end)
		wg.Wait()
	})
	return p
}

// swallow lets every connection that there is stay open, without a byte more.
func (p *proxy) swallow() {
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.swallows)
	p.swallows = make(chan struct{})
}

// pass copies both ways until one side ends, and then ends the other; or until it swallows, and then until the end.
func pass(in net.Conn, to string, swallows, end <-chan struct{}) {
	defer func() { _ = in.Close() }()
	out, err := net.Dial("tcp", to)
	if err != nil {
		return
	}
	defer func() { _ = out.Close() }()
	over := make(chan struct{}, 2)
	for _, c := range [][2]net.Conn{{in, out}, {out, in}} {
		go func() {
			buffer := make([]byte, 4096)
			for {
				n, err := c[0].Read(buffer)
				select {
				case <-swallows:
					return
				default:
				}
				if err == nil {
					_, err = c[1].Write(buffer[:n])
				}
				if err != nil {
					over <- struct{}{}
					return
				}
			}
		}()
	}
	select {
	case <-over:
	case <-swallows:
		<-end
	case <-end:
	}
}

// silent is the address of a server that takes connections and says nothing.
func silent(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var open []net.Conn
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			open = append(open, c)
			mu.Unlock()
		}
	}()
	t.Cleanup(func() {
		_ = l.Close()
		mu.Lock()
		defer mu.Unlock()
		for _, c := range open {
			_ = c.Close()
		}
	})
	return l.Addr().String()
}
