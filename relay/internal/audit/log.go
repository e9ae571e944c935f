// Package audit records security-relevant actions: who did what from where, and whether it was allowed. A [Log] writes
// them to a file and to a bounded stream in Redis, which [Store] searches.
// Repeated actions of an API key become one entry with a count. [Verify] detects changes of a file with a hash chain.
//
// Callers decide what is recorded. Entries never contain secrets or payloads.
package audit

import (
	"context"
	"io"
	"log/slog"
	"os"
	"time"

	"golang.org/x/time/rate"

	"github.com/hubrelay/hubrelay/relay"
)

// The maximum lengths of fields in bytes, because some come from clients.
const (
	maxField  = 256
	maxDetail = 1024
)

// Stdout is the name of standard output as a file.
const Stdout = "stdout"

// Appender stores lines of JSON.
type Appender interface {
	Append(ctx context.Context, lines [][]byte) error
}

// Options are the settings of a [Log].
type Options struct {
	// File receives one line of JSON per entry. It is created with mode 0600, and opened for each write, so that it can
	// be rotated. [Stdout] is standard output. Empty writes to no file.
	File string
	// HashChain adds the SHA-256 hash of the previous line to each line of File, so `hubrelay audit verify` detects
	// changes. The first line of a new file has 64 zeros. The first line after a rotation has the hash of the last line of
	// the old file. Only one process may write to the file.
	HashChain bool
	// Stdout replaces standard output. It may be nil.
	Stdout io.Writer
	// Dropped is called for each entry that is missing in the file or in Redis because too many waited. It may be nil
	// and must not block.
	Dropped func()
	Log     *slog.Logger
}

// Log writes entries in the background. The file and Redis have separate queues, so neither waits for the other.
type Log struct {
	opts      Options
	file      *queue
	store     *queue
	summaries summaries
	unknown   *rate.Limiter // see isRejectedUnknown
	now       func() time.Time
}

var _ Recorder = (*Log)(nil)

// NewLog returns a log. Entries wait until RunFile and RunStore are called, up to a limit.
func NewLog(o Options) *Log {
	if o.Stdout == nil {
		o.Stdout = os.Stdout
	}
	l := &Log{opts: o, store: newQueue("redis", o.Log), now: time.Now, unknown: rate.NewLimiter(unknownPerSecond, unknownBurst)}
	if o.File != "" {
		l.file = newQueue("file", o.Log)
	}
	return l
}

// Record implements [Recorder]. It sets the time and shortens long fields. If too many entries wait, it drops e,
// because an attacker must not be able to stop the relay with entries. It summarizes repeated entries of a key, and entries of
// unknown actors beyond a rate.
func (l *Log) Record(e Entry) {
	now := l.now()
	e.Time, e.Repeated = entryTime(now), 0
	for _, field := range []*string{&e.Actor, &e.Address, &e.Target} {
		*field = relay.Truncate(*field, maxField)
	}
	e.Detail = relay.Truncate(e.Detail, maxDetail)
	tooMany := isRejectedUnknown(&e) && !l.unknown.AllowN(now, 1)
	if tooMany {
		e = withoutTarget(e)
	}
	if tooMany || isSummarized(&e) {
		l.summaries.add(e, now, l.enqueue)
		return
	}
	l.enqueue(&e)
}

func entryTime(t time.Time) time.Time { return t.UTC().Truncate(time.Millisecond) }

// enqueue adds an entry to both queues.
func (l *Log) enqueue(e *Entry) {
	inFile := l.file == nil || l.file.add(e)
	inStore := l.store.add(e)
	if (!inFile || !inStore) && l.opts.Dropped != nil {
		l.opts.Dropped()
	}
}

// RunFile writes entries to the file until ctx ends, and then the waiting ones. It returns nil. It does not need Redis,
// so it may be called before RunStore.
func (l *Log) RunFile(ctx context.Context) error {
	if l.file == nil {
		<-ctx.Done()
		return nil
	}
	l.run(ctx, l.file, newFileWriter(&l.opts).write)
	return nil
}

// RunStore writes entries to store until ctx ends, and then the waiting ones. It returns nil.
func (l *Log) RunStore(ctx context.Context, store Appender) error {
	l.run(ctx, l.store, storeWriter{store}.write)
	return nil
}

// endSummaries writes the summaries of the windows that have ended, or of all windows.
func (l *Log) endSummaries(all bool) { l.summaries.end(l.now(), all, l.enqueue) }
