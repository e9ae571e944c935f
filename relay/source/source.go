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
	"github.com/hubrelay/hubrelay/relay/backbone"
	"github.com/hubrelay/hubrelay/relay/ingest"
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

// Place is where this node is in a source; *backbone.Source is one, and its method says what it promises.
type Place interface {
	Store(ctx context.Context, batch backbone.SourceBatch) error
}

// Store keeps places. Both methods may be called concurrently.
type Store interface {
	OpenSource(ctx context.Context, name, hub string) (Place, backbone.SourceFigures, error)
	SetSourceStatus(ctx context.Context, name string, status []byte, keep time.Duration) error
}

// Lease lets one process at a time do something, again and again until ctx ends. *backbone.Lease is one.
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
	SourceStored(source string, b backbone.SourceBatch)
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
	// Instance names this relay; see backbone.Instance. Node names this node to operators.
	Instance, Node string

	Decoder *ingest.Decoder
	Store   Store
	Lease   Lease
	// Gap tells operators that something may be missing and why. It is called before that is stored, again after a kill, and
	// then with the same id: 24 hexadecimal digits.
	Gap      func(ctx context.Context, id, why string) error
	Observer Observer
	Log      *slog.Logger
}

// Source is one upstream.
type Source struct {
	opt Options
	say *speaker
}

// New returns a source that does nothing before Run.
func New(o Options) *Source {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Observer == nil {
		o.Observer = nobody{}
	}
	if o.HTTP == nil {
		o.HTTP = func() (*http.Client, error) { return http.DefaultClient, nil }
	}
	if o.Gap == nil {
		o.Gap = func(context.Context, string, string) error { return nil }
	}
	return &Source{opt: o, say: newSpeaker()}
}

type nobody struct{}

func (nobody) SourceConnected(string, bool)              {}
func (nobody) SourceFailed(string)                       {}
func (nobody) SourceStored(string, backbone.SourceBatch) {}

// Run takes over what the upstream sends until ctx ends, whenever it has the lease, and returns ctx's error. An upstream
// that is away or refuses is tried again for ever. While Redis is away nothing more is read, and nothing is lost of what
// the upstream still has.
func (s *Source) Run(ctx context.Context) error {
	return s.opt.Lease.Run(ctx, s.turn)
}

// turn is what this node does while it has the lease.
func (s *Source) turn(ctx context.Context) error {
	place, kept, err := s.open(ctx)
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	t := &turn{
		Source: s, place: place, status: newStatus(s.opt.Node),
		waiting: make(chan message, maxWaitingCount), room: semaphore.NewWeighted(maxWaiting),
		cursor: kept.Cursor, stored: kept.Cursor, begun: kept.Begun,
	}
	group.Go(func() error { return t.read(ctx) })
	group.Go(func() error { return t.write(ctx) })
	group.Go(func() error { return t.tell(ctx) })
	err = group.Wait()
	s.opt.Observer.SourceConnected(s.opt.Name, false)
	switch {
	case errors.Is(err, backbone.ErrSourceMoved):
		s.opt.Log.InfoContext(ctx, "another node reads the source now")
		return nil
	case errors.Is(err, context.Canceled):
		return nil
	}
	return err
}

// open waits for Redis.
func (s *Source) open(ctx context.Context) (Place, backbone.SourceFigures, error) {
	for wait := backoffMin; ; wait = min(2*wait, backoffMax) {
		place, kept, err := s.opt.Store.OpenSource(ctx, s.opt.Name, s.opt.Hub)
		if err == nil || !errors.Is(err, backbone.ErrUnavailable) || ctx.Err() != nil {
			return place, kept, err
		}
		if s.say.worth("open", err) {
			s.opt.Log.WarnContext(ctx, "the place in the source cannot be read yet", "error", short(err))
		}
		relay.Pause(ctx, wait)
	}
}

// turn is the state of a turn: what comes in is read by one goroutine and stored by another.
type turn struct {
	*Source
	place   Place
	status  *status
	waiting chan message
	room    *semaphore.Weighted

	// Of the reader:
	cursor     string // behind what was read last, empty where the upstream has told none
	begun      bool   // the source has been connected before, now or in an earlier turn
	missing    string // why something is missing before the next connection, where operators are to hear of it
	upstream   string // the relay that sends, empty where it is none
	cursorless bool   // that was said

	// Of the writer:
	stored string // the last cursor that was stored
}

// message is what the reader hands to the writer.
type message struct {
	data   []byte
	cursor string
	// from names the relay that sent it.
	from string
	// refused says what is wrong with data, where it is no notification at all.
	refused string
	// gap says why something may be missing before it; told tells whether operators hear of it. via lists the relays that the
	// news of it has come through.
	gap  string
	told bool
	via  []string
}

// plain tells whether the message is a notification.
func (m *message) plain() bool { return m.data != nil && m.refused == "" }

func (m *message) weight() int64 { return int64(min(len(m.data)+256, maxWaiting)) }

// push hands a message to the writer, and waits while too much waits.
func (t *turn) push(ctx context.Context, m message) error {
	if err := t.room.Acquire(ctx, m.weight()); err != nil {
		return err
	}
	select {
	case t.waiting <- m:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
