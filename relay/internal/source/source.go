// Package source copies notifications from an upstream: another relay, or a platform with the same token endpoint
// and websocket. A lease selects one node per source. Package ingest validates the notifications, and they are
// stored together with the new position, so a crash neither loses nor duplicates any.
//
// An upstream without cursors is read live, at most once. Possible losses are counted.
//
// Package sourcestore stores the position, and package client implements the protocol. Redis commands, websockets and
// the configuration do not belong here.
package source

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"
	"golang.org/x/time/rate"

	"github.com/hubrelay/hubrelay/internal/backoff"
	"github.com/hubrelay/hubrelay/relay/internal/ingest"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
	"github.com/hubrelay/hubrelay/relay/internal/source/sourcestore"
)

const (
	// maxWaiting and maxWaitingCount limit the messages that are read but not stored, in bytes and in number. While
	// Redis is unreachable, nothing more is read from the upstream.
	maxWaiting      = 8 << 20
	maxWaitingCount = 2048
	// After maxGapBatches, a batch with a gap is stored at most once per gapInterval, because each makes all clients fetch
	// their state again. Until then, reading is suspended.
	maxGapBatches = 10
	gapInterval   = 10 * time.Second
	// maxMessage is the maximum size of a message. Only the beginning of a larger one goes to the quarantine.
	maxMessage = 2 * ingest.MaxNotification

	minBackoff = 50 * time.Millisecond
	maxBackoff = 2 * time.Second
)

// Position is the position of this node in a source. *sourcestore.Position implements and documents it.
type Position interface {
	Store(ctx context.Context, batch sourcestore.Batch) error
}

// Store stores positions. Both methods may be called concurrently.
type Store interface {
	Open(ctx context.Context, name, hub string) (Position, sourcestore.Stats, error)
	SetStatus(ctx context.Context, name string, status []byte, ttl time.Duration) error
}

// Lease runs fn in one process at a time, repeatedly until ctx ends.
type Lease interface {
	Run(ctx context.Context, fn func(context.Context) error) error
}

// Observer collects metrics. Its methods must not block.
type Observer interface {
	// SourceConnected is called with the state of the connection to the upstream.
	SourceConnected(source string, connected bool)
	// SourceFailed counts closed connections and failed attempts to connect.
	SourceFailed(source string)
	// SourceStored counts the content of a batch.
	SourceStored(source string, b sourcestore.Batch)
}

// Options are the options of a source. Topics, HTTP, ReportGap, Observer and Log may be nil.
type Options struct {
	// Name identifies the source and its stored position.
	Name string
	// URL is the address of the upstream, http or https.
	URL string
	// Hub is the hub to read. If it is empty, the account stream of the key is read.
	Hub string
	// Topics are the requested patterns. Nil means all topics.
	Topics []string
	// Key returns the API key of the upstream. It is called before each connection, and every second while the source
	// waits after a rejection.
	Key func() (string, error)
	// HTTP returns the client for the upstream. It is called for each connection.
	HTTP func() (*http.Client, error)
	// UserAgent identifies the program to the upstream.
	UserAgent string
	// MinPause and MaxPause limit the delay between attempts to connect. Zero means the defaults of
	// client.ListenOptions.
	MinPause, MaxPause time.Duration
	// RelayID is the ID of this relay; see redisconn.Conn.RelayID. Node is the name of this node for operators.
	RelayID, Node string

	Decoder *ingest.Decoder
	Store   Store
	Lease   Lease
	// ReportGap reports to operators that notifications may be missing. It is called before the gap is stored. After
	// a crash it is called again with the same ID of 24 hexadecimal digits.
	ReportGap func(ctx context.Context, id, reason string) error
	Observer  Observer
	Log       *slog.Logger
}

// Source reads one upstream.
type Source struct {
	opt         Options
	logThrottle *logThrottle
}

// New returns a source. Run starts it.
func New(o Options) *Source {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Observer == nil {
		o.Observer = noopObserver{}
	}
	if o.HTTP == nil {
		o.HTTP = func() (*http.Client, error) { return http.DefaultClient, nil }
	}
	if o.ReportGap == nil {
		o.ReportGap = func(context.Context, string, string) error { return nil }
	}
	return &Source{opt: o, logThrottle: newLogThrottle()}
}

type noopObserver struct{}

func (noopObserver) SourceConnected(string, bool)           {}
func (noopObserver) SourceFailed(string)                    {}
func (noopObserver) SourceStored(string, sourcestore.Batch) {}

// Run reads the upstream while it has the lease, until ctx ends, and returns the error of ctx. It retries forever
// if the upstream is unreachable or rejects the connection. While Redis is unreachable it stops reading, and loses
// nothing that the upstream still has.
func (s *Source) Run(ctx context.Context) error {
	return s.opt.Lease.Run(ctx, s.runWithLease)
}

// runWithLease reads the upstream while this node has the lease.
func (s *Source) runWithLease(ctx context.Context) error {
	position, stats, err := s.openPosition(ctx)
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	t := &session{
		Source: s, position: position, status: newStatus(s.opt.Node),
		messages: make(chan message, maxWaitingCount), inFlightBytes: semaphore.NewWeighted(maxWaiting),
		cursor: stats.Cursor, savedCursor: stats.Cursor, wasConnected: stats.HasPosition,
		gapBatches: rate.NewLimiter(rate.Every(gapInterval), maxGapBatches),
	}
	group.Go(func() error { return t.readLoop(ctx) })
	group.Go(func() error { return t.storeLoop(ctx) })
	group.Go(func() error { return t.publishStatus(ctx) })
	err = group.Wait()
	s.opt.Observer.SourceConnected(s.opt.Name, false)
	switch {
	case errors.Is(err, sourcestore.ErrTakenOver):
		s.opt.Log.InfoContext(ctx, "another node has taken over the source")
		return nil
	case errors.Is(err, context.Canceled):
		return nil
	}
	return err
}

// openPosition opens the position. It waits while Redis is unreachable.
func (s *Source) openPosition(ctx context.Context) (Position, sourcestore.Stats, error) {
	for retry := newBackoff(); ; {
		position, stats, err := s.opt.Store.Open(ctx, s.opt.Name, s.opt.Hub)
		if err == nil || !errors.Is(err, redisconn.ErrUnavailable) || ctx.Err() != nil {
			return position, stats, err
		}
		if s.logThrottle.allow("open", err) {
			s.opt.Log.WarnContext(ctx, "position of the source cannot be read, retrying", "error", shortError(err))
		}
		retry.Sleep(ctx)
	}
}

// newBackoff returns the delays between attempts to reach Redis.
func newBackoff() *backoff.Backoff { return &backoff.Backoff{Min: minBackoff, Max: maxBackoff} }

// session is the state while this node has the lease. One goroutine reads messages, another stores them.
type session struct {
	*Source
	position      Position
	status        *statusTracker
	messages      chan message
	inFlightBytes *semaphore.Weighted

	// Used by the reader only:
	cursor          string // of the last message; empty if the upstream has sent none
	wasConnected    bool   // whether the source was ever connected, now or in an earlier session
	gapReason       string // gap before the next connection, if operators must be informed
	isResuming      bool   // whether the connection continues after a cursor and has sent nothing yet
	upstreamID      string // ID of the sending relay; empty if the upstream is not a relay
	warnedNoCursors bool   // whether the missing cursors were logged

	// Used by the writer only:
	savedCursor string        // last stored cursor
	gapBatches  *rate.Limiter // an upstream can send any number of gaps
}

// message is passed from the reader to the writer.
type message struct {
	data   []byte
	cursor string
	// clearsCursor is set if earlier cursors are no longer valid. cursor is "".
	clearsCursor bool
	// from is the ID of the relay that sent it.
	from string
	// rejectReason is set if data is not a notification.
	rejectReason string
	// gap is the reason of a gap before the message. mustReport is set if operators must be informed. relayPath
	// lists the relays that the report of the gap has passed.
	gap        string
	mustReport bool
	relayPath  []string
}

// isNotification reports whether the message is a notification.
func (m *message) isNotification() bool { return m.data != nil && m.rejectReason == "" }

// size returns the memory of a waiting message in bytes.
func (m *message) size() int64 {
	size := len(m.data) + len(m.cursor) + len(m.gap) + 256
	for _, id := range m.relayPath {
		size += len(id)
	}
	return int64(min(size, maxWaiting))
}

// enqueue passes a message to the writer. It blocks while too many messages are waiting.
func (s *session) enqueue(ctx context.Context, m message) error {
	if err := s.inFlightBytes.Acquire(ctx, m.size()); err != nil {
		return err
	}
	select {
	case s.messages <- m:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
