package source

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/ingest"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
	"github.com/hubrelay/hubrelay/relay/internal/source/sourcestore"
)

const (
	// maxWaiting bounds what was read and is not stored yet, in bytes and in messages: while Redis is away nothing more is
	// read from the upstream.
	maxWaiting      = 8 << 20
	maxWaitingCount = 2048
	// maxMessage bounds a message that is looked at. What is larger goes to the quarantine by its beginning.
	maxMessage = 2 * ingest.MaxNotification

	backoffMin = 50 * time.Millisecond
	backoffMax = 2 * time.Second
)

// Position is where this node is in a source; *sourcestore.Position is one, and its method says what it promises.
type Position interface {
	Store(ctx context.Context, batch sourcestore.Batch) error
}

// Store keeps places. Both methods may be called concurrently.
type Store interface {
	Open(ctx context.Context, name, hub string) (Position, sourcestore.Stats, error)
	SetStatus(ctx context.Context, name string, status []byte, keep time.Duration) error
}

// Lease lets one process at a time do something, again and again until ctx ends. *lease.Lease is one.
type Lease interface {
	Run(ctx context.Context, fn func(context.Context) error) error
}

// Observer counts. Its methods must not block.
type Observer interface {
	// SourceConnected tells whether this node is connected to the upstream.
	SourceConnected(source string, connected bool)
	// SourceFailed counts connections and attempts to connect that ended.
	SourceFailed(source string)
	// SourceStored counts what a batch brought.
	SourceStored(source string, b sourcestore.Batch)
}

// Options describe a source. Topics, HTTP, Gap, Observer and Log may be nil.
type Options struct {
	// Name is the source's own, by which its place is kept.
	Name string
	// URL is the upstream's address, http or https.
	URL string
	// Hub is the hub whose pipeline is read; empty for that of the key's account.
	Hub string
	// Topics are patterns that the upstream is asked for; nil for all.
	Topics []string
	// Key returns the API key for the upstream. It is called before each attempt that an answer of the upstream has made
	// necessary, and once a second while it waits after one that refused the key.
	Key func() (string, error)
	// HTTP returns the client for the upstream. It is called when Key is.
	HTTP func() (*http.Client, error)
	// UserAgent names the program to the upstream.
	UserAgent string
	// MinPause and MaxPause bound the pause between two attempts to connect. Zero means the defaults of client.ListenOptions.
	MinPause, MaxPause time.Duration
	// Instance names this relay; see redisconn.Conn.Instance. Node names this node to operators.
	Instance, Node string

	Decoder *ingest.Decoder
	Store   Store
	Lease   Lease
	// ReportGap tells operators that something may be missing and why. It is called before that is stored, again after a kill, and
	// then with the same id: 24 hexadecimal digits.
	ReportGap func(ctx context.Context, id, why string) error
	Observer  Observer
	Log       *slog.Logger
}

// Source is one upstream.
type Source struct {
	opt         Options
	logThrottle *logThrottle
}

// New returns a source that does nothing before Run.
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
	return &Source{opt: o, logThrottle: newSpeaker()}
}

type noopObserver struct{}

func (noopObserver) SourceConnected(string, bool)           {}
func (noopObserver) SourceFailed(string)                    {}
func (noopObserver) SourceStored(string, sourcestore.Batch) {}

// Run takes over what the upstream sends until ctx ends, whenever it has the lease, and returns ctx's error. An upstream
// that is away or refuses is tried again for ever. While Redis is away nothing more is read, and nothing is lost of what
// the upstream still has.
func (s *Source) Run(ctx context.Context) error {
	return s.opt.Lease.Run(ctx, s.runWithLease)
}

// runWithLease is what this node does while it has the lease.
func (s *Source) runWithLease(ctx context.Context) error {
	place, kept, err := s.openPosition(ctx)
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	t := &session{
		Source: s, position: place, status: newStatus(s.opt.Node),
		messages: make(chan message, maxWaitingCount), inFlightBytes: semaphore.NewWeighted(maxWaiting),
		cursor: kept.Cursor, savedCursor: kept.Cursor, wasConnected: kept.HasPosition,
	}
	group.Go(func() error { return t.read(ctx) })
	group.Go(func() error { return t.storeLoop(ctx) })
	group.Go(func() error { return t.publishStatus(ctx) })
	err = group.Wait()
	s.opt.Observer.SourceConnected(s.opt.Name, false)
	switch {
	case errors.Is(err, sourcestore.ErrTakenOver):
		s.opt.Log.InfoContext(ctx, "another node reads the source now")
		return nil
	case errors.Is(err, context.Canceled):
		return nil
	}
	return err
}

// openPosition waits for Redis.
func (s *Source) openPosition(ctx context.Context) (Position, sourcestore.Stats, error) {
	for wait := backoffMin; ; wait = min(2*wait, backoffMax) {
		place, kept, err := s.opt.Store.Open(ctx, s.opt.Name, s.opt.Hub)
		if err == nil || !errors.Is(err, redisconn.ErrUnavailable) || ctx.Err() != nil {
			return place, kept, err
		}
		if s.logThrottle.allow("open", err) {
			s.opt.Log.WarnContext(ctx, "the place in the source cannot be read yet", "error", shortError(err))
		}
		relay.Sleep(ctx, wait)
	}
}

// session is the state of a turn: what comes in is read by one goroutine and stored by another.
type session struct {
	*Source
	position      Position
	status        *statusTracker
	messages      chan message
	inFlightBytes *semaphore.Weighted

	// Of the reader:
	cursor          string // behind what was read last, empty where the upstream has told none
	wasConnected    bool   // the source has been connected before, now or in an earlier turn
	gapReason       string // why something is missing before the next connection, where operators are to hear of it
	upstreamID      string // the relay that sends, empty where it is none
	warnedNoCursors bool   // that was said

	// Of the writer:
	savedCursor string // the last cursor that was stored
}

// message is what the reader hands to the writer.
type message struct {
	data   []byte
	cursor string
	// from names the relay that sent it.
	from string
	// rejectReason says what is wrong with data, where it is no notification at all.
	rejectReason string
	// gap says why something may be missing before it; told tells whether operators hear of it. via lists the relays that the
	// news of it has come through.
	gap         string
	gapReported bool
	relayPath   []string
}

// isNotification tells whether the message is a notification.
func (m *message) isNotification() bool { return m.data != nil && m.rejectReason == "" }

func (m *message) size() int64 { return int64(min(len(m.data)+256, maxWaiting)) }

// enqueue hands a message to the writer, and waits while too much waits.
func (t *session) enqueue(ctx context.Context, m message) error {
	if err := t.inFlightBytes.Acquire(ctx, m.size()); err != nil {
		return err
	}
	select {
	case t.messages <- m:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
