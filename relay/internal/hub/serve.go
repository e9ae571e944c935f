package hub

import (
	"bufio"
	"context"
	"errors"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/gorilla/websocket"

	"github.com/hubrelay/hubrelay/internal/streamid"
	"github.com/hubrelay/hubrelay/relay"
)

// Subscription defines what one client receives.
type Subscription struct {
	// Hub is the hub whose pipeline is opened; empty for the account pipeline.
	Hub string
	// Account limits the pipeline before Allows is called: the account of visible notifications, "*" for all, or empty
	// for notifications without an account. A hub pipeline without a VisibilityKey ignores it.
	Account string
	// Allows reports whether a notification of hub and account is visible. It must not be nil. It is called
	// concurrently and for each notification, and must not block.
	Allows func(hub, account string) bool
	// VisibilityKey identifies the results of Allows: clients of one pipeline with equal keys share a call. If empty,
	// each client is checked.
	VisibilityKey string
	// Hubs are the hubs whose notifications may be visible on an account pipeline, so others are skipped. "*" or none
	// means all. It requires a VisibilityKey, and a hub pipeline ignores it. It must not be changed afterwards.
	Hubs []string
	// Topics selects among what may be seen; the zero value is everything.
	Topics relay.Patterns
	// Cursor adds the member "cursor" to each message.
	Cursor bool
	// After is the cursor after which the client continues. It is empty for a client that wants only new notifications,
	// and [streamid.Now] for a client that first receives the current cursor (as event streams always do). It implies
	// Cursor.
	After string
	// Key names the key that opened the stream, for logs and limits.
	Key string
	// CheckKey returns the status of the key for this stream. It is called at the start, before each ping, and by
	// [Hub.RecheckKeys]. It may be called concurrently, and must not block or call the hub. nil means that nothing
	// changes.
	CheckKey func() KeyStatus
	// Admit is called last, when nothing else can refuse the upgrade: it uses up the token. Its error is returned by
	// Serve. Nil admits.
	Admit func(context.Context) *relay.Error
	// OnGone is called when a client is gone that was admitted; nil does nothing.
	OnGone func()
}

// hasCursor reports whether the client continues after a cursor.
func (s *Subscription) hasCursor() bool { return s.After != "" && s.After != streamid.Now }

// Serve upgrades the request to a websocket and returns. The client is served until it leaves. Serve checks the
// handshake, but not the origin or credentials. Everything that is broadcast after the client has seen the 101 reaches
// it, and with a cursor also the entries before that.
//
// An error means that nothing was written. The caller answers and keeps the headers that Serve has set
// (Sec-WebSocket-Version, Allow, Retry-After). After nil the caller must not use w.
func (h *Hub) Serve(w http.ResponseWriter, r *http.Request, s Subscription) *relay.Error {
	if problem := CheckHandshake(w, r); problem != nil {
		return problem
	}
	if !canHijack(w) {
		return relay.NewError(relay.CodeUnknown, "this connection cannot be upgraded")
	}
	var as frameFormat
	var extension http.Header
	if h.deflater != nil {
		if answer := acceptDeflate(r.Header); answer != "" {
			as, extension = formatDeflated, http.Header{extensionHeader: {answer}}
		}
	}
	c, _, problem := h.admit(w, r, &s, as)
	if problem != nil {
		return problem
	}
	door := &hijackWriter{ResponseWriter: w, client: c}
	if _, err := h.upgrader.Upgrade(door, plainHandshake(r), extension); err != nil {
		c.readerDone()
		if !door.hijacked {
			return relay.NewError(relay.CodeUnknown, "the connection cannot be upgraded")
		}
		h.opts.Log.Debug("an upgrade failed", "error", err)
		return nil
	}
	h.startClient(c)
	go c.read()
	return nil
}

// admit adds a client, up to the answer. It returns the start of an event stream.
func (h *Hub) admit(
	w http.ResponseWriter, r *http.Request, s *Subscription, as frameFormat,
) (c *client, begin []byte, problem *relay.Error) {
	if s.Allows == nil {
		return nil, nil, relay.NewError(relay.CodeUnknown, "the subscription allows nothing")
	}
	c = &client{
		hub: h, allows: s.Allows, checkKey: s.CheckKey, key: s.Key, format: as, feed: h.feedFor(s), opened: time.Now(),
		handshakePending: true, fd: -1, pingsSinceMessage: 1,
	}
	if s.Cursor || s.After != "" && as&formatSSE == 0 { // an event has its id
		c.format |= formatCursor
	}
	if s.hasCursor() {
		if c.replay, problem = h.newReplay(c, s); problem != nil {
			return nil, nil, problem
		}
	}
	if c.slot, problem = h.Reserve(w.Header(), s.Hub, s.Key); problem != nil {
		return nil, nil, problem
	}
	begin, added := h.addWithCursor(c, s)
	if !added {
		c.slot.Release()
		return nil, nil, relay.NewError(relay.CodeNotReady, "this node is shutting down; connect again")
	}
	standing := c.refreshKeyStatus() // the key was checked before, when a Recheck would have missed this client
	if standing.Refused != nil {
		c.readerDone()
		return nil, nil, standing.Refused
	}
	c.closeForKey(standing) // the key has changed: the client is closed after the answer and reconnects
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

// addWithCursor adds a client with its current cursor if it needs one. It returns the start of an event stream, or
// queues the first message.
func (h *Hub) addWithCursor(c *client, s *Subscription) (begin []byte, added bool) {
	first := c.firstMessage(s)
	if c.format&formatSSE == 0 && first == nil {
		return nil, h.add(c, s)
	}
	c.feed.mu.Lock() // the cursor must match the order of broadcasts
	defer c.feed.mu.Unlock()
	if !h.add(c, s) {
		return nil, false
	}
	if first != nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.queue.push(newFrame(first, c.format, c.currentCursor()))
		c.pingsSinceMessage = 0
	}
	if c.format&formatSSE != 0 {
		begin = ssePreamble(c.currentCursor())
	}
	return begin, true
}

// firstMessage returns the first message of a client that joins the broadcasts at once, or nil.
func (c *client) firstMessage(s *Subscription) []byte {
	switch {
	case c.replay == nil && s.hasCursor():
		return relay.ResyncMessage(s.Hub, s.Account, lostLog)
	case s.After == streamid.Now && c.format&formatSSE == 0:
		return relay.CursorMessage(s.Hub, s.Account)
	default:
		return nil
	}
}

// newUpgrader answers handshakes. The hub reads and writes the following frames itself; see frameReader and writeQueue.
func newUpgrader() websocket.Upgrader {
	return websocket.Upgrader{
		WriteBufferPool: &sync.Pool{}, // else it would make a buffer
		CheckOrigin:     func(*http.Request) bool { return true },
	}
}

// hijackWriter is the ResponseWriter for gorilla. A hijack returns the client's connection, and an answer is discarded.
type hijackWriter struct {
	http.ResponseWriter
	client   *client
	hijacked bool
}

func (d *hijackWriter) Header() http.Header         { return http.Header{} }
func (d *hijackWriter) Write(p []byte) (int, error) { return len(p), nil }
func (d *hijackWriter) WriteHeader(int)             {}

func (d *hijackWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(d.ResponseWriter).Hijack()
	if err != nil {
		return nil, nil, err
	}
	d.hijacked = true
	if err := d.client.setConn(conn); err != nil {
		_ = conn.Close()
		return nil, nil, err
	}
	return &handshakeConn{conn, d.client}, rw, nil
}

var errAborted = errors.New("the hub was closed during the upgrade")

func (c *client) setConn(conn net.Conn) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.aborted {
		return errAborted
	}
	c.conn = conn
	c.raw, c.fd = rawConn(conn)
	if c.format&formatSSE != 0 { // nothing answers a heartbeat
		setTCPUserTimeout(conn, c.hub.opts.PongTimeout)
	}
	return nil
}

// handshakeConn is the connection that gorilla sees: all that it writes is the 101.
type handshakeConn struct {
	net.Conn
	client *client
}

func (w *handshakeConn) Write(p []byte) (int, error) {
	w.client.finishHandshake(append(make([]byte, 0, len(p)), p...))
	return len(p), nil
}

// finishHandshake writes the answer to the handshake, followed by the queued frames.
func (c *client) finishHandshake(answer []byte) {
	c.hub.opts.Observer.Connected(c.format&formatDeflated != 0)
	c.mu.Lock()
	c.queueCloseFrame()
	c.queue.pushHandshake(answer)
	c.handshakePending, c.writing = false, true
	c.mu.Unlock()
	c.tryFlush()
}
