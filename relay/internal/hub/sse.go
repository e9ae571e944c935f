package hub

import (
	"bytes"
	"crypto/tls"
	"encoding/json"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"

	"github.com/hubrelay/hubrelay/relay"
)

// An event stream (SSE) is another encoding of the frames for the same clients: text instead of frames, a comment
// instead of a ping, and an event "close" instead of a close frame. Over HTTP/1 the connection is hijacked as for a
// websocket. Over HTTP/2 it stays with the server, and http2Conn represents it.

const (
	// A browser comes back after two to four seconds, not all at once.
	minReconnectDelay = 2000
	reconnectJitter   = 2000
)

// ServeEvents answers the request with an event stream. Over HTTP/1 it returns at once and the client is served until
// it leaves. Over HTTP/2 it returns when the client has left. It checks neither origin nor credentials. Everything that
// is broadcast after the client has seen the header reaches it, and with a cursor also the entries before that.
//
// An error means that nothing was written. Headers of w are part of the answer. After nil the caller must not use w.
func (h *Hub) ServeEvents(w http.ResponseWriter, r *http.Request, s Subscription) *relay.Error {
	if r.Method != http.MethodGet {
		w.Header().Set("Allow", http.MethodGet)
		return relay.NewError(relay.CodeMethod, "a stream is opened with GET")
	}
	if r.ProtoMajor == 1 && !canHijack(w) {
		return relay.NewError(relay.CodeUnknown, "this connection cannot become a stream")
	}
	c, begin, problem := h.admit(w, r, &s, formatSSE)
	if problem != nil {
		return problem
	}
	header := w.Header()
	header.Set("Content-Type", "text/event-stream")
	header.Set("Cache-Control", "no-store")
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("X-Accel-Buffering", "no") // nginx would gather
	if r.ProtoMajor == 1 {
		h.serveHijacked(w, c, begin)
	} else {
		h.serveHTTP2(w, r, c, begin)
	}
	return nil
}

// serveHijacked serves the client on the connection itself. The answer has no length: it ends with the connection.
func (h *Hub) serveHijacked(w http.ResponseWriter, c *client, begin []byte) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		h.opts.Log.Debug("a stream could not be opened", "error", err)
		c.readerDone()
		return
	}
	if err := c.setConn(conn); err != nil {
		_ = conn.Close()
		c.readerDone()
		return
	}
	header := w.Header()
	header.Set("Connection", "close")
	var answer bytes.Buffer
	answer.WriteString("HTTP/1.1 200 OK\r\n")
	_ = header.Write(&answer)
	answer.WriteString("\r\n")
	answer.Write(begin)
	c.finishHandshake(answer.Bytes())
	h.startClient(c)
	go c.waitForClose()
}

// waitForClose waits until the client closes the connection; it has nothing to say.
func (c *client) waitForClose() {
	var space [64]byte
	for {
		n, err := c.conn.Read(space[:])
		c.countReceived(n)
		if err != nil {
			c.readerDone()
			return
		}
	}
}

// serveHTTP2 serves the client through the request's own writer until it is gone.
func (h *Hub) serveHTTP2(w http.ResponseWriter, r *http.Request, c *client, begin []byte) {
	conn := newStream(w, r)
	defer conn.finish()
	finished := make(chan struct{})
	c.mu.Lock()
	c.gone = finished
	c.mu.Unlock()
	if err := c.setConn(conn); err == nil {
		w.WriteHeader(http.StatusOK)
		c.finishHandshake(begin)
		h.startClient(c)
		select {
		case <-r.Context().Done():
			if conn.deadlinePassed() {
				c.closeSlowConsumer()
			}
		case <-conn.done:
		}
	}
	c.readerDone()
	<-finished
}

// startClient starts what runs for a client whose answer has been written.
func (h *Hub) startClient(c *client) {
	h.wheel.add(c)
	if c.replay != nil {
		h.running.Add(1) // the client is still counted: nothing reads yet
		go c.replay.run()
	}
}

// ssePreamble returns the start of a stream: the reconnection delay, and a cursor for a client without one.
func ssePreamble(cursor []byte) []byte {
	b := append([]byte("retry: "), strconv.Itoa(minReconnectDelay+rand.IntN(reconnectJitter))...)
	b = append(b, '\n')
	return append(append(b, sseHeartbeat(cursor)...), '\n')
}

// sseHeartbeat is a comment, with the cursor of a client that is up to date: browsers remember it.
func sseHeartbeat(cursor []byte) []byte {
	if cursor == nil {
		return []byte(":\n")
	}
	return append(append([]byte(":\nid: "), cursor...), '\n')
}

// sseFrame encodes a message as an event. JSON may contain line breaks between tokens, which start new lines of the
// event.
func sseFrame(cursor []byte, parts ...[]byte) []byte {
	size := len("id: \ndata: \n\n") + len(cursor)
	for _, part := range parts {
		size += len(part)
	}
	b := append(append(append(make([]byte, 0, size), "id: "...), cursor...), "\ndata: "...)
	for _, part := range parts {
		for {
			i := bytes.IndexAny(part, "\r\n")
			if i < 0 {
				break
			}
			b = append(append(b, part[:i]...), "\ndata: "...)
			part = part[i+1:]
		}
		b = append(b, part...)
	}
	return append(b, "\n\n"...)
}

// sseClose is the last event of a stream that the relay ends.
func sseClose(code uint16, reason string) []byte {
	data, _ := json.Marshal(struct {
		Code   uint16 `json:"code"`
		Reason string `json:"reason"`
	}{code, reason})
	return append(append([]byte("event: close\ndata: "), data...), "\n\n"...)
}

// sendHeartbeat sends the heartbeat of an event stream.
func (c *client) sendHeartbeat() {
	l := c.feed
	l.mu.Lock()
	defer l.mu.Unlock()
	c.sendControl(append(sseHeartbeat(c.currentCursor()), '\n'))
}

// currentCursor returns the feed's cursor for a client that receives broadcasts, and nil during its replay. The caller
// holds the feed's lock.
func (c *client) currentCursor() []byte {
	if c.hub.index.groupOf(c) == nil {
		return nil
	}
	return c.feed.formatCursor(c.feed.positions)
}

// halfClose closes the sending side of the connection.
func halfClose(conn net.Conn) {
	switch conn := conn.(type) {
	case *tls.Conn:
		_ = conn.CloseWrite()
	case interface{ CloseWrite() error }:
		_ = conn.CloseWrite()
	default:
		_ = conn.Close()
	}
}
