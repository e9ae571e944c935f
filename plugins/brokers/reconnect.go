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
	minRedialPause = 50 * time.Millisecond
	maxRedialPause = 2 * time.Second
	dialTime       = 5 * time.Second
	writeTime      = 10 * time.Second
)

var errClosed = errors.New("the plugin is stopping")

// brokerConn publishes until it is dead. Publish then returns by itself, with what the broker had still answered, else a lostError:
// a broker that refuses a message may end the connection right behind its answer, as Mosquitto does.
type brokerConn interface {
	message.Publisher
	// lifetime ends when the connection is of no more use; it never does where the library makes new ones by itself.
	lifetime() context.Context
}

// opener dials, and reads user and password anew each time. ctx bounds the dial, not the connection.
type opener func(ctx context.Context) (brokerConn, error)

// eachHost returns the first connection that dial makes, of the addresses in turn.
func (s *Sink) eachHost(dial func(host string) (brokerConn, error)) (brokerConn, error) {
	var errs []error
	for _, host := range s.config.hostPorts() {
		c, err := dial(host)
		if err == nil {
			return c, nil
		}
		errs = append(errs, err)
	}
	return nil, errors.Join(errs...)
}

// reconnector dials when something is to be delivered and there is no connection, one dial at a time. Whoever waits gets the result of
// the dial under way, so that a broker that comes back within the time of an attempt costs none.
type reconnector struct {
	open opener
	log  *slog.Logger
	ctx  context.Context // of the plugin
	stop context.CancelFunc

	mu      sync.Mutex
	current brokerConn
	dial    *dialResult   // nil where none is under way
	pause   time.Duration // before the next dial
	lastErr error
	dials   sync.WaitGroup
}

type dialResult struct {
	done chan struct{}
	c    brokerConn
	err  error
}

func newLink(open opener, log *slog.Logger) *reconnector {
	l := &reconnector{open: open, log: log}
	l.ctx, l.stop = context.WithCancel(context.Background())
	return l
}

// connection returns a connection, or the error of the dial that was waited for.
func (l *reconnector) connection(ctx context.Context) (brokerConn, error) {
	l.mu.Lock()
	if l.ctx.Err() != nil {
		l.mu.Unlock()
		return nil, errClosed
	}
	if c := l.current; c != nil {
		if c.lifetime().Err() == nil {
			l.mu.Unlock()
			return c, nil
		}
		l.dropConnection()
	}
	d := l.dial
	if d == nil {
		d = &dialResult{done: make(chan struct{})}
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

// dropConnection drops a connection that is dead. The caller holds the lock.
func (l *reconnector) dropConnection() {
	c := l.current
	l.current = nil
	l.log.Warn("the connection to the broker was lost")
	go func() { _ = c.Close() }() // a library may wait in it
}

// connect returns no connection whose dial has taken too long, even if it was just made: it may be closed at that moment.
func (l *reconnector) connect() (brokerConn, error) {
	ctx, cancel := context.WithTimeout(l.ctx, dialTime)
	defer cancel()
	c, err := l.open(ctx)
	if err == nil && ctx.Err() != nil {
		_ = c.Close()
		return nil, fmt.Errorf("no connection within %s", dialTime)
	}
	return c, err
}

// run makes one dial.
func (l *reconnector) run(d *dialResult, pause time.Duration) {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
		d.c, d.err = l.connect()
	case <-l.ctx.Done():
		d.err = errClosed
	}
	l.mu.Lock()
	switch {
	case l.ctx.Err() != nil:
		if d.c != nil {
			_ = d.c.Close()
		}
		d.c, d.err = nil, errClosed
	case d.err != nil:
		l.pause = min(max(pause*2, minRedialPause), maxRedialPause)
	default:
		l.current, l.pause = d.c, 0
		l.log.Info("connected to the broker")
	}
	l.lastErr, l.dial = d.err, nil
	l.mu.Unlock()
	close(d.done)
}

// close ends the connection. It may be called twice. A library that goes on dialling is not waited for beyond ctx.
func (l *reconnector) close(ctx context.Context) {
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

// handshakeDialer dials connections that are closed when ctx ends before the handshake on them is done: not every library has its
// handshake look at a context.
type handshakeDialer struct {
	ctx context.Context

	mu    sync.Mutex
	stops []func() bool
}

// Dial dials. Its form is NATS'.
func (h *handshakeDialer) Dial(network, address string) (net.Conn, error) {
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

// keepOpen lets the connections live on.
func (h *handshakeDialer) keepOpen() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, stop := range h.stops {
		stop()
	}
}

// cancelableLifetime is what a connection has that can be declared dead. Of several causes the first counts.
type cancelableLifetime struct {
	ctx  context.Context
	kill context.CancelCauseFunc
}

func newMortal() cancelableLifetime {
	var m cancelableLifetime
	m.ctx, m.kill = context.WithCancelCause(context.Background())
	return m
}

func (m cancelableLifetime) lifetime() context.Context { return m.ctx }

// lossError is the error of what was not answered before the end. Libraries may say its cause a little later than the end itself.
func (m cancelableLifetime) lossError(ctx context.Context) error {
	select {
	case <-m.ctx.Done():
	case <-ctx.Done():
	}
	return &connLostError{context.Cause(m.ctx)}
}

// endlessLifetime is what a connection has that its library makes anew.
type endlessLifetime struct{}

func (endlessLifetime) lifetime() context.Context { return context.Background() }

// connLostError is the end of a connection on which something was published.
type connLostError struct{ cause error }

func (e *connLostError) Error() string {
	text := "the connection was lost before it acknowledged; a repeat has the same id"
	if e.cause != nil && !errors.Is(e.cause, context.Canceled) {
		text += " (" + e.cause.Error() + ")"
	}
	return text
}

func (e *connLostError) Unwrap() error { return e.cause }
