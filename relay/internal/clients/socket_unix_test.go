//go:build unix

package clients

import (
	"net"
	"syscall"
	"testing"
)

// The file descriptor of a closed socket is reused. A closed connection never writes to the new socket. Not parallel:
// another test could take the descriptor.
func TestClosedConnection_DoesNotWriteToReusedDescriptor(t *testing.T) {
	for name, closeIt := range map[string]func(*connection){
		"aborted": (*connection).closeNow,
		"dead": func(c *connection) {
			c.mu.Lock()
			c.writing = true
			c.releaseWriter(net.ErrClosed)
		},
	} {
		t.Run(name, func(t *testing.T) {
			listener, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = listener.Close() }()
			far, err := net.Dial("tcp", listener.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = far.Close() }()
			conn, err := listener.Accept()
			if err != nil {
				t.Fatal(err)
			}
			c := &connection{server: New(Options{}), fd: -1}
			c.lease, _ = c.server.reserveLease(nil, &Subscription{Hub: "h", Key: "k"})
			if err := c.setConn(conn); err != nil || c.fd < 0 {
				t.Fatalf("%v: the socket has the number %d", err, c.fd)
			}
			closeIt(c)
			stranger := take(t, c.fd)

			b := &frameBatch{}
			b.push([]byte("not yours"))
			c.write(b)
			c.mu.Lock()
			n, err := c.tryWrite([]byte("nor this"))
			c.mu.Unlock()
			if n > 0 || err == nil {
				t.Errorf("%d bytes were written: %v", n, err)
			}
			space := make([]byte, 64)
			if n, _, err := syscall.Recvfrom(stranger, space, syscall.MSG_DONTWAIT); n > 0 {
				t.Errorf("the next socket got %q, %v", space[:n], err)
			}
		})
	}
}

// take opens sockets until one has this number, and returns the one at its other end.
func take(t *testing.T, number int) int {
	t.Helper()
	for range 64 {
		pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = syscall.Close(pair[0])
			_ = syscall.Close(pair[1])
		})
		for i := range pair {
			if pair[i] == number {
				return pair[1-i]
			}
		}
	}
	t.Fatalf("nothing was given the number %d", number)
	return -1
}
