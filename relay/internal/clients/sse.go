package clients

import (
	"bytes"
	"net/http"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/clients/frame"
	"github.com/hubrelay/hubrelay/relay/internal/clients/transport"
)

// Event streams (SSE) are connections like websockets with another encoding: text instead of frames, a comment instead
// of a ping, and an event "close" instead of a close frame. HTTP/1 connections are hijacked; an HTTP/2 stream
// belongs to the server and is wrapped in a transport.HTTP2Conn.

// ServeEvents responds with an event stream. Over HTTP/1 it returns at once and the client is served until it leaves;
// over HTTP/2 it returns when the client has left. It checks neither origin nor credentials. The client receives
// everything that is broadcast after it has received the response header, and with a cursor the entries after that.
//
// On an error nothing was written. The header of w is sent with the response. After nil the caller must not use w.
func (s *Server) ServeEvents(w http.ResponseWriter, r *http.Request, sub Subscription) *relay.Error {
	if r.Method != http.MethodGet {
		w.Header().Set("Allow", http.MethodGet)
		return relay.NewError(relay.CodeMethod, "a stream is opened with GET")
	}
	if r.ContentLength != 0 { // the server would keep it until the stream ends
		return relay.NewError(relay.CodeInvalidSyntax, "the request for an event stream has no body; send none")
	}
	if r.ProtoMajor == 1 && !transport.CanHijack(w) {
		return relay.NewError(relay.CodeUnknown, "this connection cannot become a stream")
	}
	c, begin, err := s.admitClient(w, r, &sub, frame.SSE)
	if err != nil {
		return err
	}
	header := w.Header()
	header.Set("Content-Type", "text/event-stream")
	header.Set("Cache-Control", "no-store")
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("X-Accel-Buffering", "no") // nginx would buffer
	if r.ProtoMajor == 1 {
		s.serveHijacked(w, c, begin)
	} else {
		s.serveHTTP2(w, r, c, begin)
	}
	return nil
}

// serveHijacked serves the client on the hijacked connection. The response has no length, so it ends with the
// connection.
func (s *Server) serveHijacked(w http.ResponseWriter, c *connection, begin []byte) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		s.opts.Log.Debug("event stream could not be opened", "error", err)
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
	var response bytes.Buffer
	response.WriteString("HTTP/1.1 200 OK\r\n")
	_ = header.Write(&response)
	response.WriteString("\r\n")
	response.Write(begin)
	c.beginStream(response.Bytes())
	s.start(c)
	go c.waitForClose()
}

// waitForClose waits until the client closes the connection, and discards its input.
func (c *connection) waitForClose() {
	var space [64]byte
	for {
		n, err := c.conn.Read(space[:])
		if c.countReceived(n) {
			c.drainInput()
			err = errFlood
		}
		if err != nil {
			c.readerDone()
			return
		}
	}
}

// serveHTTP2 serves the client through the ResponseWriter until the client has left.
func (s *Server) serveHTTP2(w http.ResponseWriter, r *http.Request, c *connection, begin []byte) {
	conn := transport.NewHTTP2Conn(w, r)
	defer conn.Finish()
	finished := make(chan struct{})
	c.mu.Lock()
	c.gone = finished
	c.mu.Unlock()
	if err := c.setConn(conn); err == nil {
		w.WriteHeader(http.StatusOK)
		clear(r.Header) // otherwise it stays in memory for the time of the stream
		c.beginStream(begin)
		s.start(c)
		select {
		case <-r.Context().Done():
			if conn.DeadlinePassed() {
				c.closeSlowConsumer()
			}
		case <-conn.Done():
		}
	}
	c.readerDone()
	<-finished
}

// start starts pings and the replay of a client whose response was written.
func (s *Server) start(c *connection) {
	s.wheel.add(c)
	if c.replay != nil {
		s.running.Add(1) // the client still counts, because nothing reads yet
		go c.replay.run()
	}
}

// sendHeartbeat sends the heartbeat of an event stream.
func (c *connection) sendHeartbeat() {
	l := c.feed
	l.mu.Lock()
	defer l.mu.Unlock()
	c.sendControl(append(frame.NewSSEHeartbeat(c.currentCursor()), '\n'))
}

// currentCursor returns the cursor of the feed, or nil if the client's replay is still running. The caller holds the
// lock of the feed.
func (c *connection) currentCursor() []byte {
	if c.server.index.groupOf(c) == nil {
		return nil
	}
	return c.feed.formatEndCursor()
}
