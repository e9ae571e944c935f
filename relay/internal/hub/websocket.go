package hub

import (
	"context"
	"errors"
	"net"
	"net/http"
	"time"

	"github.com/hubrelay/hubrelay/internal/streamid"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/hub/frame"
	"github.com/hubrelay/hubrelay/relay/internal/hub/transport"
)

// Subscription is what one client is to receive.
type Subscription struct {
	// Hub is the hub whose pipeline is opened; empty for the account pipeline.
	Hub string
	// Account narrows the pipeline before Allows is asked: the account whose notifications may be seen, "*" for every
	// account, empty for none but the notifications without an account. A hub pipeline without a Sight ignores it.
	Account string
	// Allows says whether a notification of hub and account may be seen. It must not be nil; it is called concurrently
	// and for each notification, and must not block.
	Allows func(hub, account string) bool
	// VisibilityKey names what Allows says: clients of one pipeline with the same Sight see the same, so that one answer serves
	// them all. Empty where that is not known; then each is asked.
	VisibilityKey string
	// Hubs are those whose notifications Allows may let through on an account pipeline, so that no others are looked at for this
	// client; "*" or none means any. It needs a Sight, and a hub pipeline ignores it. Nobody may change it afterwards.
	Hubs []string
	// Topics selects among what may be seen; the zero value is everything.
	Topics relay.Patterns
	// Cursor asks for a member "cursor" in each message.
	Cursor bool
	// After is the cursor behind which the client comes back; empty for one that wants what comes, and [streamid.Now] for one
	// that is to be told the cursor of that moment first (an event stream always is). It implies Cursor.
	After string
	// Key names the key that opened the stream, for logs and limits.
	Key string
	// CheckKey says how the key stands to this stream now. It is asked at the beginning, before each ping and by
	// [Hub.RecheckKeys], may be called concurrently, and must neither block nor call the hub. Nil means that nothing changes.
	CheckKey func() Authorization
	// Admit is called last, when nothing else can refuse the upgrade: it uses up the token. Its error is returned by
	// Serve. Nil admits.
	Admit func(context.Context) *relay.Error
	// OnGone is called when a client is gone that was admitted; nil does nothing.
	OnGone func()
}

// hasCursor says whether the client comes back with a cursor.
func (s *Subscription) hasCursor() bool { return s.After != "" && s.After != streamid.Now }

// ServeWebSocket upgrades the request to a websocket and returns; the client is served until it leaves. It checks the handshake
// but neither origin nor credentials. What is broadcast after the client has seen the 101 reaches it, and with a cursor
// what was behind that before.
//
// An error means that nothing was written: the caller answers, keeping the headers that Serve may have set
// (Sec-WebSocket-Version, Allow, Retry-After). After nil the caller must not touch w.
func (h *Hub) ServeWebSocket(w http.ResponseWriter, r *http.Request, s Subscription) *relay.Error {
	if problem := transport.CheckHandshake(w, r); problem != nil {
		return problem
	}
	if !transport.CanHijack(w) {
		return relay.NewError(relay.CodeUnknown, "this connection cannot be upgraded")
	}
	var as frame.Encoding
	var extensions string
	if h.deflater != nil {
		if extensions = transport.AcceptDeflate(r.Header); extensions != "" {
			as = frame.Deflated
		}
	}
	c, _, problem := h.admit(w, r, &s, as)
	if problem != nil {
		return problem
	}
	conn, response, err := h.upgrader.Upgrade(w, r, extensions)
	if err == nil {
		err = c.setConn(conn)
	}
	if err != nil {
		c.readerDone()
		if conn == nil {
			return relay.NewError(relay.CodeUnknown, "the connection cannot be upgraded")
		}
		_ = conn.Close()
		h.opts.Log.Debug("websocket upgrade failed", "error", err)
		return nil
	}
	c.begin(response)
	h.start(c)
	go c.read()
	return nil
}

// admit takes a client in whose request may be answered, up to the answer itself. It returns what an event stream begins
// with.
func (h *Hub) admit(w http.ResponseWriter, r *http.Request, s *Subscription, as frame.Encoding) (c *connection, begin []byte, problem *relay.Error) {
	if s.Allows == nil {
		return nil, nil, relay.NewError(relay.CodeUnknown, "the subscription allows nothing")
	}
	c = &connection{
		hub: h, allows: s.Allows, checkKey: s.CheckKey, key: s.Key, format: as, feed: h.feedFor(s), opened: time.Now(), handshakePending: true, fd: -1, pingsSinceMessage: 1,
	}
	if s.Cursor || s.After != "" && as&frame.SSE == 0 { // an event has its id
		c.format |= frame.WithCursor
	}
	if s.hasCursor() {
		if c.replay, problem = h.newReplay(c, s); problem != nil {
			return nil, nil, problem
		}
	}
	if c.lease, problem = h.Reserve(w.Header(), s.Hub, s.Key); problem != nil {
		return nil, nil, problem
	}
	begin, added := h.addWithCursor(c, s)
	if !added {
		c.lease.Release()
		return nil, nil, relay.NewError(relay.CodeNotReady, "this node is shutting down; connect again")
	}
	standing := c.authorize() // the key was checked before, when a Recheck would have missed this client
	if standing.Refused != nil {
		c.readerDone()
		return nil, nil, standing.Refused
	}
	c.closeForKey(standing) // where the key has changed the client is told so behind the answer, and comes again
	if s.Admit != nil {
		if problem := s.Admit(r.Context()); problem != nil {
			c.readerDone()
			return nil, nil, problem
		}
	}
	c.mu.Lock()
	c.onGone = s.OnGone
	c.mu.Unlock()
	if s.hasCursor() && c.replay == nil {
		h.opts.Observer.Resynced(ResyncCursor, 1)
	}
	return c, begin, nil
}

// addWithCursor takes a client in, at a place in its line that it is told where it wants to know or has to: that returns what an
// event stream begins with, and queues the first message.
func (h *Hub) addWithCursor(c *connection, s *Subscription) (begin []byte, added bool) {
	first := c.firstMessage(s)
	if c.format&frame.SSE == 0 && first == nil {
		return nil, h.add(c, s)
	}
	c.feed.mu.Lock() // so that what follows the cursor is what is broadcast to the client
	defer c.feed.mu.Unlock()
	if !h.add(c, s) {
		return nil, false
	}
	if first != nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.queue.push(frame.New(first, c.format, c.currentCursor()))
		c.pingsSinceMessage = 0
	}
	if c.format&frame.SSE != 0 {
		begin = frame.NewSSEPreamble(c.currentCursor())
	}
	return begin, true
}

// firstMessage is the first message of a client that gets broadcasts at once; nil where there is nothing to say.
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

var errAborted = errors.New("the hub was closed during the upgrade")

func (c *connection) setConn(conn net.Conn) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.aborted {
		return errAborted
	}
	c.conn = conn
	c.raw, c.fd = transport.RawConn(conn)
	if c.format&frame.SSE != 0 { // nothing answers a heartbeat
		transport.SetTCPUserTimeout(conn, c.hub.opts.PongTimeout)
	}
	return nil
}

// begin writes the response to the request, then everything that was queued before it.
func (c *connection) begin(answer []byte) {
	c.hub.opts.Observer.Connected(c.format&frame.Deflated != 0)
	c.mu.Lock()
	c.queueCloseFrame()
	c.queue.pushHandshake(answer)
	c.handshakePending, c.writing = false, true
	c.mu.Unlock()
	c.tryFlush()
}
