package hub

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hubrelay/hubrelay/relay"
)

const (
	// readLimit bounds a message of a client, which has nothing to say.
	readLimit = 4 << 10
	// maxHeard is how many bytes a client may send between two of our pings, control frames included.
	maxHeard = 64 << 10
	// lingerTimeout is how long a client may take to answer a close frame that its socket has accepted.
	lingerTimeout = 2 * time.Second
)

type state uint8

const (
	live    state = iota
	leaving       // a close frame is on its way and nothing may follow it
	dead          // nothing is written any more
)

// client is one connection. Whoever sets writing owns the socket's sending side until he hands over or retires; only
// the owner removes from the queue, anybody may add to it.
//
// What a broadcast looks at comes first, so that it lies together: with thousands of clients nothing else is in the
// processor's caches.
type client struct {
	mu       sync.Mutex
	state    state
	held     bool // the 101 has not been written: everything waits for it
	writing  bool
	cut      bool // drop what is queued before the close frame
	aborted  bool
	readDone bool
	form     form
	quiet    uint8 // pings since it was sent a message
	// fd, raw and conn do not change once held is false. fd is -1 and raw nil where the socket cannot be written to directly
	// (TLS). While conn may be closed the client is, under mu, not live or aborted: see offer.
	fd     int
	queue  queue
	last   []byte // the close frame, until the owner queues it
	raw    syscall.RawConn
	replay *replay // nil for one that came without a cursor
	conn   net.Conn

	hub    *Hub
	allows func(hub, account string) bool
	stands func() Standing // or nil
	key    string          // whose it is, for logs
	place  *Place
	line   *line
	opened time.Time
	told   uint64 // how far its line was when it was told a cursor last; guarded by mu
	number uint64 // greater than of all who came before

	group          *group // guarded by the index, like inGroup
	inGroup        int
	spoke, onSpoke int // guarded by the wheel

	pinged atomic.Int64 // when the oldest unanswered ping was sent, in nanoseconds since the hub began (no clock that is set), or 0
	heard  atomic.Int32 // bytes that the client sent since our last ping
	owed   int32        // bytes of control frames since the queue was empty; guarded by mu

	// These are guarded by mu, too.
	ending   Ending
	killer   *time.Timer
	expiry   *time.Timer
	ended    func()        // called when the client is gone, or nil
	finished chan struct{} // closed then, where somebody waits
}

// closing says how a client is sent away.
type closing struct {
	code   uint16
	reason string
	frame  []byte // instead of code and reason
	ending Ending
	cut    bool // drop what is queued
}

// send gives the client a burst and reports whether it took it. It writes to an idle socket at once, never blocks, and
// closes a client whose queue is full.
func (c *client) send(b *burst) bool {
	c.mu.Lock()
	if c.state != live {
		c.mu.Unlock()
		return false
	}
	if c.queue.size > 0 && c.queue.size+b.size > c.hub.opts.QueueBytes {
		c.mu.Unlock()
		c.closeSlow()
		return false
	}
	c.quiet = 0
	if c.writing || c.held || c.fd < 0 {
		for _, frame := range b.frames {
			c.queue.push(frame)
		}
		c.start()
		c.mu.Unlock()
		return true
	}
	n, err := c.offer(b.bytes())
	if n == b.size {
		c.mu.Unlock()
		return true
	}
	c.writing = true
	c.queue.putBack(b.frames, n)
	c.handOver(err)
	return true
}

// feed queues what a replay has for an idle client, and writes at once what the socket takes. It reports false where
// the client is leaving. Only the replay may call it, after [client.idle].
func (c *client) feed(frames [][]byte) bool {
	c.mu.Lock()
	if c.state != live {
		c.mu.Unlock()
		return false
	}
	for _, frame := range frames {
		c.queue.push(frame)
	}
	if c.writing || c.queue.empty() {
		c.mu.Unlock()
		return true
	}
	c.writing = true
	c.mu.Unlock()
	c.flush()
	return true
}

// idle says whether everything that was queued has been written, and whether the client stays.
func (c *client) idle() (idle, stays bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.queue.empty() && !c.writing, c.state == live
}

// control queues a control frame behind what is queued, and writes at once where it can. It counts for itself: a chunk of a
// replay may be more than a queue holds, and owing a pong behind it is nobody's fault.
func (c *client) control(frame []byte) {
	c.mu.Lock()
	if c.queue.empty() {
		c.owed = 0
	}
	c.owed += int32(len(frame))
	switch {
	case c.state != live:
	case c.owed > maxHeard:
		c.mu.Unlock()
		c.closeSlow()
		return
	case c.writing || c.held:
		c.queue.push(frame)
	default:
		c.queue.push(frame)
		c.writing = true
		c.mu.Unlock()
		c.flush()
		return
	}
	c.mu.Unlock()
}

// ping sends a ping, or gives up a client that has not answered or whose key is another now. A client for which something
// is queued is left alone: the write timeout watches it.
func (c *client) ping(now time.Time) {
	c.heard.Store(0)
	if c.dismissed() {
		return
	}
	c.mu.Lock()
	idle, lags := c.state == live && c.queue.empty(), c.lags()
	c.mu.Unlock()
	if !idle {
		return
	}
	if c.form&asEvent != 0 {
		c.beat() // who is gone is noticed by the system: see giveUpAfter
		return
	}
	at := int64(now.Sub(c.hub.began))
	if first := c.pinged.Load(); first != 0 && at-first >= int64(c.hub.opts.PongTimeout) {
		c.close(closing{code: ClosePolicy, reason: "no answer to a ping", ending: EndedSilent, cut: true})
		return
	}
	c.pinged.CompareAndSwap(0, at)
	if !lags || !c.pingWithCursor() {
		c.control(newPing())
	}
}

func newPing() []byte { return []byte{finPing, 0} }

func (c *client) closeSlow() bool {
	return c.close(closing{
		code: CloseTooSlow, reason: "too slow: more was waiting than the relay keeps for a client; connect again",
		ending: EndedSlow, cut: true,
	})
}

// close sends a close frame and lets nothing follow it. It reports false where the client was leaving already.
func (c *client) close(how closing) bool {
	c.mu.Lock()
	if c.state != live {
		c.mu.Unlock()
		return false
	}
	c.state, c.ending, c.cut, c.last = leaving, how.ending, how.cut, how.frame
	switch {
	case c.last != nil:
	case c.form&asEvent != 0:
		c.last = eventClose(how.code, how.reason)
	default:
		c.last = closeFrame(how.code, how.reason)
	}
	if how.ending != EndedDrain { // a drain has a time limit of its own
		c.killer = time.AfterFunc(c.hub.opts.CloseTimeout, c.abort)
	}
	c.start()
	c.mu.Unlock()
	c.hub.silence(c)
	return true
}

// abort cuts the connection off.
func (c *client) abort() {
	c.mu.Lock()
	c.aborted = true
	conn := c.conn
	c.mu.Unlock()
	if conn != nil {
		hangUp(conn)
	}
}

// hangUp closes conn without waiting for the far side, as closing TLS may: it writes first.
func hangUp(conn net.Conn) {
	if secure, ok := conn.(*tls.Conn); ok {
		conn = secure.NetConn()
	}
	_ = conn.Close()
}

// read takes what a websocket's client sends until the connection ends. Messages are ignored: browsers cannot send
// pings, and many programs send "ping" as text instead. Its stack is all that an idle client costs beside a few hundred
// bytes, so that it must stay shallow.
func (c *client) read() {
	var (
		in    = incoming{deflated: c.form&deflated != 0}
		space [64]byte
		err   error
	)
	for err == nil {
		var n int
		n, err = c.conn.Read(space[:])
		if n > 0 {
			c.hear(n)
			if problem := c.take(&in, space[:n]); problem != nil {
				err = problem
			}
		}
	}
	if in.ending != EndedByClient {
		c.linger()
	}
	c.endRead()
}

// hear closes a client that sends more than anyone needs to, pongs and empty fragments included.
func (c *client) hear(n int) {
	c.pinged.Store(0)
	if c.heard.Add(int32(n)) > maxHeard {
		c.close(closing{code: ClosePolicy, reason: "you send too much; this stream is one way", ending: EndedProtocol, cut: true})
	}
}

// linger throws away what still comes behind a close frame of ours: closing a socket with unread bytes resets it, and
// the client would never see why.
func (c *client) linger() {
	c.mu.Lock()
	wait := c.state == leaving
	c.mu.Unlock()
	if wait {
		_, _ = io.Copy(io.Discard, c.conn)
	}
}

// endRead is called once, when nothing will be read any more.
func (c *client) endRead() {
	c.mu.Lock()
	c.readDone = true
	if c.state == live {
		c.state, c.ending = dead, EndedByClient
	}
	broken, idle, conn := c.state == dead, !c.writing, c.conn
	c.mu.Unlock()
	c.replay.poke()
	switch {
	case conn == nil:
	case broken:
		hangUp(conn) // ends the writing, too
	case idle:
		_ = conn.Close()
	}
	if idle {
		c.finish()
	}
}

// finish is called once, by the last of reader and writer.
func (c *client) finish() {
	c.mu.Lock()
	c.queue.drop()
	for _, t := range []*time.Timer{c.killer, c.expiry} {
		if t != nil {
			t.Stop()
		}
	}
	ending, connected, ended, finished := c.ending, !c.held, c.ended, c.finished
	c.mu.Unlock()
	if ended != nil {
		ended()
	}
	if finished != nil {
		defer close(finished)
	}
	if connected {
		c.hub.opts.Observer.Disconnected(ending, c.form&deflated != 0)
		c.logEnding(ending)
	}
	c.hub.remove(c)
}

// sees tells whether n may be shown to the client.
func (c *client) sees(n *relay.Notification) bool { return forAll(n) || c.allows(n.Hub, n.Account) }

// logEnding says at level info what an operator may want to ask about.
func (c *client) logEnding(ending Ending) {
	level := slog.LevelDebug
	if ending == EndedSlow || ending == EndedSilent || ending == EndedProtocol {
		level = slog.LevelInfo
	}
	c.hub.opts.Log.LogAttrs(context.Background(), level, "a client is gone",
		slog.String("why", string(ending)), slog.String("key", c.key),
		slog.String("remote", c.conn.RemoteAddr().String()), slog.String("connected", time.Since(c.opened).Round(time.Millisecond).String()))
}

// timedOut says whether a write error means that the socket accepted nothing for too long.
func timedOut(err error) bool { return errors.Is(err, os.ErrDeadlineExceeded) }
