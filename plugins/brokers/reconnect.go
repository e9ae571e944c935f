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

	"github.com/hubrelay/hubrelay/internal/await"
)

const (
	// The pause after a failed dial grows from minRedialPause to maxRedialPause.
	minRedialPause = 50 * time.Millisecond
	maxRedialPause = 2 * time.Second
	dialTimeout    = 5 * time.Second
	writeTimeout   = 10 * time.Second
)

var (
	errClosed = errors.New("the plugin is stopping")
	// errConnectedLate reports a connection that was made at the very end of the time limit.
	errConnectedLate = fmt.Errorf("no connection within %s", dialTimeout)
)

// brokerConn is a connection to a broker. When it is lost, every pending Publish returns: with the response if the
// broker sent one, otherwise with a connLostError. A broker such as Mosquitto may close the connection directly after
// it rejected a message, and then the rejection counts.
type brokerConn interface {
	message.Publisher
	// lifetime ends when the connection is lost. It never ends if the client library reconnects by itself.
	lifetime() context.Context
}

// opener dials. It reads the password file for each call. ctx limits the dial, not the connection.
type opener func(ctx context.Context) (brokerConn, error)

// eachHost dials the addresses in order and returns the first connection.
func (s *Sink) eachHost(ctx context.Context, dial func(host string) (brokerConn, error)) (brokerConn, error) {
	var errs []error
	for _, host := range s.config.hostPorts() {
		c, err := dial(host)
		if err == nil {
			return c, nil
		}
		errs = append(errs, explainDialTimeout(ctx, err))
		if ctx.Err() != nil {
			break // no time is left for the other addresses
		}
	}
	return nil, errors.Join(errs...)
}

// noResponseError reports that a broker did not respond to a dial or a message in time. The cause is the error of the library.
type noResponseError struct {
	limit time.Duration
	cause error
}

func (e *noResponseError) Error() string {
	return fmt.Sprintf("the broker did not respond within %s", e.limit.Round(100*time.Millisecond))
}

func (e *noResponseError) Unwrap() error { return e.cause }

// explainDialTimeout replaces the error of a dial that ran out of time. A library may report only that its connection was
// closed. The deadline of a connection can pass shortly before the one of ctx, from which the library takes it.
func explainDialTimeout(ctx context.Context, err error) error {
	if err == nil || !isTimeout(err) && !errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return err
	}
	return &noResponseError{dialTimeout, err}
}

func isTimeout(err error) bool {
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}

// reconnector dials on demand, one dial at a time. All deliveries wait for the dial in progress, so a broker that
// returns before an attempt times out costs no attempt.
type reconnector struct {
	open opener
	log  *slog.Logger
	ctx  context.Context // ends with close
	stop context.CancelFunc

	mu      sync.Mutex
	current brokerConn
	dial    *dialResult   // the dial in progress, or nil
	pause   time.Duration // before the next dial
	lastErr error
	dials   sync.WaitGroup
}

type dialResult struct {
	done chan struct{}
	c    brokerConn
	err  error
}

// newReconnector returns a reconnector that dials nothing yet.
func newReconnector(open opener, log *slog.Logger) *reconnector {
	r := &reconnector{open: open, log: log}
	r.ctx, r.stop = context.WithCancel(context.Background())
	return r
}

// connection returns the current connection, or the result of the next dial.
func (r *reconnector) connection(ctx context.Context) (brokerConn, error) {
	r.mu.Lock()
	if r.ctx.Err() != nil {
		r.mu.Unlock()
		return nil, errClosed
	}
	if c := r.current; c != nil {
		if c.lifetime().Err() == nil {
			r.mu.Unlock()
			return c, nil
		}
		r.dropConnection()
	}
	d := r.dial
	if d == nil {
		d = &dialResult{done: make(chan struct{})}
		r.dial = d
		pause := r.pause
		r.dials.Go(func() { r.runDial(d, pause) })
	}
	last := r.lastErr
	r.mu.Unlock()
	if _, late := await.Value(ctx, d.done); late == nil {
		return d.c, d.err
	}
	if last == nil {
		last = errors.New("no response yet")
	}
	return nil, fmt.Errorf("cannot connect in time: %w", last)
}

// dropConnection discards the lost connection. The caller holds the lock.
func (r *reconnector) dropConnection() {
	c := r.current
	r.current = nil
	r.log.Warn("the connection to the broker was lost")
	go func() { _ = c.Close() }() // some libraries block in Close
}

// connect rejects a late connection, because a handshakeDialer may be closing it.
func (r *reconnector) connect() (brokerConn, error) {
	ctx, cancel := context.WithTimeout(r.ctx, dialTimeout)
	defer cancel()
	c, err := r.open(ctx)
	if err == nil && ctx.Err() != nil {
		_ = c.Close()
		return nil, errConnectedLate
	}
	return c, err
}

// runDial makes one dial after a pause.
func (r *reconnector) runDial(d *dialResult, pause time.Duration) {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
		d.c, d.err = r.connect()
	case <-r.ctx.Done():
		d.err = errClosed
	}
	r.mu.Lock()
	switch {
	case r.ctx.Err() != nil:
		if d.c != nil {
			_ = d.c.Close()
		}
		d.c, d.err = nil, errClosed
	case d.err != nil:
		r.pause = min(max(pause*2, minRedialPause), maxRedialPause)
	default:
		r.current, r.pause = d.c, 0
		r.log.Info("connected to the broker")
	}
	r.lastErr, r.dial = d.err, nil
	r.mu.Unlock()
	close(d.done)
}

// close closes the connection. It may be called twice. It waits for a dial in progress until ctx ends.
func (r *reconnector) close(ctx context.Context) {
	r.stop()
	ended := make(chan struct{})
	go func() {
		r.dials.Wait()
		close(ended)
	}()
	_, _ = await.Value(ctx, ended)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.current != nil {
		_ = r.current.Close()
		r.current = nil
	}
}

// handshakeDialer closes the connections that it dialed if ctx ends before keepOpen is called. Some libraries ignore
// the context during their handshake.
type handshakeDialer struct {
	ctx context.Context

	mu    sync.Mutex
	stops []func() bool
}

// Dial implements nats.CustomDialer.
func (h *handshakeDialer) Dial(network, address string) (net.Conn, error) {
	c, err := (&net.Dialer{}).DialContext(h.ctx, network, address)
	if err != nil {
		return nil, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.stops = append(h.stops, context.AfterFunc(h.ctx, func() { _ = c.Close() }))
	return timedConn{newLimitedConn(c)}, nil
}

// timedConn limits the time of each write. Libraries hold a lock while they write, and need the same lock to close the
// connection.
type timedConn struct{ net.Conn }

func (c timedConn) Write(b []byte) (int, error) {
	if err := c.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil {
		return 0, err
	}
	return c.Conn.Write(b)
}

// keepOpen stops watching ctx.
func (h *handshakeDialer) keepOpen() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, stop := range h.stops {
		stop()
	}
}

// cancelableLifetime is the lifetime of a connection that this package replaces. The first cause passed to kill counts.
type cancelableLifetime struct {
	ctx  context.Context
	kill context.CancelCauseFunc
}

func newLifetime() cancelableLifetime {
	var l cancelableLifetime
	l.ctx, l.kill = context.WithCancelCause(context.Background())
	return l
}

func (l cancelableLifetime) lifetime() context.Context { return l.ctx }

// lossError is the error of a message that was not acknowledged before the connection was lost. It waits for the cause,
// which a library may report later than the loss.
func (l cancelableLifetime) lossError(ctx context.Context) error {
	select {
	case <-l.ctx.Done():
	case <-ctx.Done():
	}
	return &connLostError{context.Cause(l.ctx)}
}

// endlessLifetime is the lifetime of a connection whose library reconnects by itself.
type endlessLifetime struct{}

func (endlessLifetime) lifetime() context.Context { return context.Background() }

// connLostError reports that the connection was lost while a message was not acknowledged.
type connLostError struct{ cause error }

func (e *connLostError) Error() string {
	text := "the connection was lost before it acknowledged; a repeat has the same id"
	if e.cause != nil && !errors.Is(e.cause, context.Canceled) {
		text += " (" + e.cause.Error() + ")"
	}
	return text
}

func (e *connLostError) Unwrap() error { return e.cause }

// resendError reports that the connection was lost before the broker acknowledged or rejected the message, so it can be sent
// again at once.
type resendError struct{ error }

func (e *resendError) Unwrap() error { return e.error }
