package clients

import (
	"context"
	"errors"
	"net"
	"net/http"
	"time"

	"github.com/hubrelay/hubrelay/internal/streamid"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/clients/frame"
	"github.com/hubrelay/hubrelay/relay/internal/clients/transport"
)

// Subscription describes the stream of one client.
type Subscription struct {
	// Hub is the hub of a hub stream. It is empty for an account stream.
	Hub string
	// Account limits the stream to one account before Allows is called: "*" for all accounts, empty for
	// notifications without an account only. A hub stream without a VisibilityKey ignores it.
	Account string
	// Allows reports whether the client may see a notification of a hub and account. It is required. It is called
	// concurrently for each notification and must not block.
	Allows func(hub, account string) bool
	// VisibilityKey identifies the behavior of Allows: clients of one stream with the same key see the same, so one
	// call serves all of them. If it is empty, Allows is called for each client.
	VisibilityKey string
	// Hubs are the hubs that Allows may accept on an account stream, so the index skips others. "*" or an empty
	// list means all. It requires a VisibilityKey, is ignored by hub streams, and must not be changed afterwards.
	Hubs []string
	// Topics selects among the visible notifications. The zero value selects all.
	Topics relay.Patterns
	// Cursor requests a member "cursor" in each message.
	Cursor bool
	// Metadata requests the members "id" and "time" in each notification.
	Metadata bool
	// After is the cursor to resume after, or the time from which to start (RFC 3339). It implies Cursor. If it is empty,
	// the client receives new notifications only. With [streamid.Now] a websocket receives the current cursor first, as
	// event streams always do.
	After string
	// Key is the name of the key that opened the stream, for logs and limits.
	Key string
	// CheckKey returns the current authorization of the key. It is called at the start, before each ping and by
	// [Server.RecheckKeys], concurrently. It must neither block nor call the server. Nil means that it never changes.
	CheckKey func() Authorization
	// Admit is called last, when nothing else can reject the upgrade, because it consumes the token. ServeWebSocket
	// and ServeEvents return its error. Nil admits all. recheck makes the server call CheckKey again. It may be called at
	// any time, concurrently, and does not block.
	Admit func(ctx context.Context, recheck func()) *relay.Error
	// OnGone is called when an admitted client has left. It may be nil.
	OnGone func()
}

// hasCursor reports whether the client resumes after a cursor or from a time.
func (s *Subscription) hasCursor() bool { return s.After != "" && s.After != streamid.Now }

// ServeWebSocket upgrades the request to a websocket and returns; the client is served until it leaves. It checks the
// handshake, but neither origin nor credentials. The client receives everything that is broadcast after it has
// received the 101 response, and with a cursor the entries after that.
//
// On an error nothing was written. The caller writes the response with the headers that are already set
// (Sec-WebSocket-Version, Allow, Retry-After). After nil the caller must not use w.
func (s *Server) ServeWebSocket(w http.ResponseWriter, r *http.Request, sub Subscription) *relay.Error {
	if err := transport.CheckHandshake(w, r); err != nil {
		return err
	}
	if !transport.CanHijack(w) {
		return relay.NewError(relay.CodeUnknown, "this connection cannot be upgraded")
	}
	var as frame.Encoding
	var extensions string
	if s.deflater != nil {
		if extensions = transport.AcceptDeflate(r.Header); extensions != "" {
			as = frame.Deflated
		}
	}
	c, _, err := s.admitClient(w, r, &sub, as)
	if err != nil {
		return err
	}
	conn, response, upgradeErr := s.upgrader.Upgrade(w, r, extensions)
	if upgradeErr == nil {
		upgradeErr = c.setConn(conn)
	}
	if upgradeErr != nil {
		c.readerDone()
		if conn == nil {
			return relay.NewError(relay.CodeUnknown, "the connection cannot be upgraded")
		}
		_ = conn.Close()
		s.opts.Log.Debug("websocket upgrade failed", "error", upgradeErr)
		return nil
	}
	c.beginStream(response)
	s.start(c)
	go c.read()
	return nil
}

// admitClient adds a client and calls Admit, so only the response is left to write. It returns the start of an event
// stream.
func (s *Server) admitClient(w http.ResponseWriter, r *http.Request, sub *Subscription, as frame.Encoding) (
	c *connection, begin []byte, err *relay.Error,
) {
	if sub.Allows == nil {
		return nil, nil, relay.NewError(relay.CodeUnknown, "the subscription allows nothing")
	}
	c = &connection{
		server: s, allows: sub.Allows, checkKey: sub.CheckKey, key: sub.Key, format: as, feed: s.feedFor(sub), opened: time.Now(),
		handshakePending: true, fd: -1, pingsSinceMessage: 1,
	}
	if sub.Cursor || sub.After != "" && as&frame.SSE == 0 { // an event has an id instead
		c.format |= frame.WithCursor
	}
	if sub.Metadata {
		c.format |= frame.WithMetadata
	}
	if sub.hasCursor() {
		if c.replay, err = s.newReplay(r.Context(), c, sub); err != nil {
			return nil, nil, err
		}
	}
	if c.lease, err = s.reserveLease(w.Header(), sub); err != nil {
		return nil, nil, err
	}
	if c.replay != nil {
		c.replay.ctx, c.replay.cancel = context.WithCancel(s.ctx)
	}
	begin, added := s.addWithCursor(c, sub)
	if !added {
		c.replay.leave()
		c.lease.release()
		return nil, nil, relay.NewError(relay.CodeNotReady, "this node is shutting down; connect again")
	}
	authorization := c.checkAuthorization() // again, because RecheckKeys could have missed this client before add
	if authorization.Refused != nil {
		c.readerDone()
		return nil, nil, authorization.Refused
	}
	c.closeForKey(authorization) // after the response, if the key has changed
	if sub.Admit != nil {
		if err := sub.Admit(r.Context(), func() { c.closeIfKeyInvalid() }); err != nil {
			c.readerDone()
			return nil, nil, err
		}
		c.closeIfKeyInvalid() // the token may expire before the key
	}
	c.mu.Lock()
	c.onGone = sub.OnGone
	c.mu.Unlock()
	if sub.hasCursor() && c.replay == nil {
		s.opts.Observer.Resynced(ResyncCursor, 1)
	}
	return c, begin, nil
}

// addWithCursor adds a client at a known position of its feed if the client needs a cursor. It queues the first
// message and returns the start of an event stream.
func (s *Server) addWithCursor(c *connection, sub *Subscription) (begin []byte, added bool) {
	first := c.firstMessage(sub)
	if c.format&frame.SSE == 0 && first == nil {
		return nil, s.add(c, sub)
	}
	c.feed.mu.Lock() // so no broadcast comes between the cursor and add
	defer c.feed.mu.Unlock()
	if !s.add(c, sub) {
		return nil, false
	}
	if first != nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.queue.push(frame.New(&relay.Notification{Data: first}, c.format, c.currentCursor()))
		c.pingsSinceMessage = 0
	}
	if c.format&frame.SSE != 0 {
		begin = frame.NewSSEPreamble(c.currentCursor())
	}
	return begin, true
}

// firstMessage returns the first message of a client without a replay, or nil.
func (c *connection) firstMessage(s *Subscription) []byte {
	switch {
	case c.replay == nil && s.hasCursor():
		return relay.ResyncMessage(s.Hub, s.Account, lostLog)
	case s.After == streamid.Now && c.format&frame.SSE == 0:
		return relay.CursorMessage(s.Hub, s.Account)
	default:
		return nil
	}
}

var errAborted = errors.New("server closed during the upgrade")

func (c *connection) setConn(conn net.Conn) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.aborted {
		return errAborted
	}
	c.conn = conn
	c.raw, c.fd = transport.RawConn(conn)
	transport.LimitUnsent(conn)
	if c.format&frame.SSE != 0 { // clients do not reply to a heartbeat
		transport.SetTCPUserTimeout(conn, c.server.opts.PongTimeout)
	}
	return nil
}

// beginStream writes the response to the request, then everything that was queued before it.
func (c *connection) beginStream(response []byte) {
	c.server.opts.Observer.Connected(c.format&frame.Deflated != 0)
	c.mu.Lock()
	c.queueCloseFrame()
	c.queue.pushHandshake(response)
	c.handshakePending, c.writing = false, true
	c.mu.Unlock()
	c.tryFlush()
}
