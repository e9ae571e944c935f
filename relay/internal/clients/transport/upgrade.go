package transport

import (
	"bufio"
	"crypto/fips140"
	"net"
	"net/http"
	"sync"

	"github.com/gorilla/websocket"
)

// Upgrader completes websocket handshakes. It may be used concurrently.
type Upgrader struct{ upgrader websocket.Upgrader }

// NewUpgrader returns an Upgrader.
func NewUpgrader() *Upgrader {
	return &Upgrader{websocket.Upgrader{
		WriteBufferPool: &sync.Pool{}, // without it, every upgrade allocates a buffer
		CheckOrigin:     func(*http.Request) bool { return true },
	}}
}

// Upgrade takes the connection of a request that passed [CheckHandshake]. It returns the 101 response, which the
// caller writes before anything else. The response has the given Sec-WebSocket-Extensions header unless that is empty.
//
// On an error nothing was written. Then conn is nil if w is still usable; otherwise it is closed.
func (u *Upgrader) Upgrade(w http.ResponseWriter, r *http.Request, extensions string) (
	conn net.Conn, response []byte, err error,
) {
	var header http.Header
	if extensions != "" {
		header = http.Header{extensionHeader: {extensions}}
	}
	hijack := &hijackWriter{ResponseWriter: w}
	// RFC 6455 requires SHA-1 for Sec-WebSocket-Accept, not for security. GODEBUG=fips140=only would panic.
	fips140.WithoutEnforcement(func() { _, err = u.upgrader.Upgrade(hijack, minimalHandshake(r), header) })
	return hijack.conn, hijack.response, err
}

// hijackWriter is the ResponseWriter that gorilla sees. It stores the 101 instead of sending it, and discards error
// responses, which the caller writes.
type hijackWriter struct {
	http.ResponseWriter
	conn     net.Conn
	response []byte
}

func (w *hijackWriter) Header() http.Header         { return http.Header{} }
func (w *hijackWriter) Write(p []byte) (int, error) { return len(p), nil }
func (w *hijackWriter) WriteHeader(int)             {}

func (w *hijackWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(w.ResponseWriter).Hijack()
	if err != nil {
		return nil, nil, err
	}
	w.conn = conn
	return &handshakeConn{conn, w}, rw, nil
}

// handshakeConn is the connection that gorilla sees. Gorilla writes only the 101 to it.
type handshakeConn struct {
	net.Conn
	writer *hijackWriter
}

func (c *handshakeConn) Write(p []byte) (int, error) {
	c.writer.response = append(c.writer.response, p...)
	return len(p), nil
}

// CanHijack reports whether [http.ResponseController] can hijack the connection of w. It unwraps w as that does.
func CanHijack(w http.ResponseWriter) bool {
	for w != nil {
		if _, ok := w.(http.Hijacker); ok {
			return true
		}
		inner, ok := w.(interface{ Unwrap() http.ResponseWriter })
		if !ok {
			return false
		}
		w = inner.Unwrap()
	}
	return false
}
