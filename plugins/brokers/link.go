package brokers

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/hubrelay/hubrelay/relay"
)

// Between two dials that fail there is a pause, which grows.
const (
	pauseFirst = 50 * time.Millisecond
	pauseMost  = 2 * time.Second
	dialTime   = 5 * time.Second
	writeTime  = 10 * time.Second
)

var errClosed = errors.New("the plugin ends")

// connection publishes until it is dead. Publish then returns by itself, with what the broker had still answered, else a lostError:
// a broker that refuses a message may end the connection right behind its answer, as Mosquitto does.
type connection interface {
	message.Publisher
	// life ends when the connection is of no more use; it never does where the library makes new ones by itself.
	life() context.Context
}

// opener dials, and reads user and password anew each time. ctx bounds the dial, not the connection.
type opener func(ctx context.Context) (connection, error)

// eachHost returns the first connection that dial makes, of the addresses in turn.
func (s *Sink) eachHost(dial func(host string) (connection, error)) (connection, error) {
	var errs []error
	for _, host := range s.config.hosts() {
		c, err := dial(host)
		if err == nil {
			return c, nil
		}
		errs = append(errs, err)
	}
	return nil, errors.Join(errs...)
}

// link dials when something is to be delivered and there is no connection, one dial at a time. Whoever waits gets the result of
// the dial under way, so that a broker that comes back within the time of an attempt costs none.
type link struct {
	open opener
	log  *slog.Logger
	end  context.Context // of the plugin
	stop context.CancelFunc

	mu      sync.Mutex
	current connection
	dial    *dial         // nil where none is under way
	pause   time.Duration // before the next dial
	lastErr error
	dials   sync.WaitGroup
}

type dial struct {
	done chan struct{}
	c    connection
	err  error
}

func newLink(open opener, log *slog.Logger) *link {
	l := &link{open: open, log: log}
	l.end, l.stop = context.WithCancel(context.Background())
	return l
}

// get returns a connection, or the error of the dial that was waited for.
func (l *link) get(ctx context.Context) (connection, error) {
	l.mu.Lock()
	if l.end.Err() != nil {
		l.mu.Unlock()
		return nil, errClosed
	}
	if c := l.current; c != nil {
		if c.life().Err() == nil {
			l.mu.Unlock()
			return c, nil
		}
		l.forget()
	}
	d := l.dial
	if d == nil {
		d = &dial{done: make(chan struct{})}
		l.dial = d
		pause := l.pause
		l.dials.Go(func() { l.run(d, pause) })
	}
	last := l.lastErr
	l.mu.Unlock()
	if _, there := relay.Await(ctx, d.done); there {
		return d.c, d.err
	}
	if last == nil {
		last = errors.New("no answer yet")
	}
	return nil, fmt.Errorf("cannot connect in time: %w", last)
}

// forget drops a connection that is dead. The caller holds the lock.
func (l *link) forget() {
	c := l.current
	l.current = nil
	l.log.Warn("the connection to the broker was lost")
	go func() { _ = c.Close() }() // a library may wait in it
}

// connect returns no connection whose dial has taken too long, even if it was just made: it may be closed at that moment.
func (l *link) connect() (connection, error) {
	ctx, cancel := context.WithTimeout(l.end, dialTime)
	defer cancel()
	c, err := l.open(ctx)
	if err == nil && ctx.Err() != nil {
		_ = c.Close()
		return nil, fmt.Errorf("no connection within %s", dialTime)
	}
	return c, err
}

// run makes one dial.
func (l *link) run(d *dial, pause time.Duration) {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
		d.c, d.err = l.connect()
	case <-l.end.Done():
		d.err = errClosed
	}
	l.mu.Lock()
	switch {
	case l.end.Err() != nil:
		if d.c != nil {
			_ = d.c.Close()
		}
		d.c, d.err = nil, errClosed
	case d.err != nil:
		l.pause = min(max(pause*2, pauseFirst), pauseMost)
	default:
		l.current, l.pause = d.c, 0
		l.log.Info("connected to the broker")
	}
	l.lastErr, l.dial = d.err, nil
	l.mu.Unlock()
	close(d.done)
}

// close ends the connection. It may be called twice. A library that goes on dialling is not waited for beyond ctx.
func (l *link) close(ctx context.Context) {
	l.stop()
	ended := make(chan struct{})
	go func() {
		l.dials.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-ctx.Done():
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.current != nil {
		_ = l.current.Close()
		l.current = nil
	}
}

// handshake dials connections that are closed when ctx ends before the handshake on them is done: not every library has its
// handshake look at a context.
type handshake struct {
	ctx context.Context

	mu    sync.Mutex
	stops []func() bool
}

// Dial dials. Its form is NATS'.
func (h *handshake) Dial(network, address string) (net.Conn, error) {
	c, err := (&net.Dialer{}).DialContext(h.ctx, network, address)
	if err != nil {
		return nil, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.stops = append(h.stops, context.AfterFunc(h.ctx, func() { _ = c.Close() }))
	return timedConn{c}, nil
}

// timedConn fails a write that does not get on. Libraries write with a lock in their hands that closing the connection needs, too.
type timedConn struct{ net.Conn }

func (c timedConn) Write(b []byte) (int, error) {
	if err := c.SetWriteDeadline(time.Now().Add(writeTime)); err != nil {
		return 0, err
	}
	return c.Conn.Write(b)
}

// done lets the connections live on.
func (h *handshake) done() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, stop := range h.stops {
		stop()
	}
}

// mortal is what a connection has that can be declared dead. Of several causes the first counts.
type mortal struct {
	ctx context.Context
	die context.CancelCauseFunc
}

func newMortal() mortal {
	var m mortal
	m.ctx, m.die = context.WithCancelCause(context.Background())
	return m
}

func (m mortal) life() context.Context { return m.ctx }

// lost is the error of what was not answered before the end. Libraries may say its cause a little later than the end itself.
func (m mortal) lost(ctx context.Context) error {
	select {
	case <-m.ctx.Done():
	case <-ctx.Done():
	}
	return &lostError{context.Cause(m.ctx)}
}

// immortal is what a connection has that its library makes anew.
type immortal struct{}

func (immortal) life() context.Context { return context.Background() }

// lostError is the end of a connection on which something was published.
type lostError struct{ cause error }

func (e *lostError) Error() string {
	text := "the connection was lost before it acknowledged; a repeat has the same id"
	if e.cause != nil && !errors.Is(e.cause, context.Canceled) {
		text += " (" + e.cause.Error() + ")"
	}
	return text
}

func (e *lostError) Unwrap() error { return e.cause }
