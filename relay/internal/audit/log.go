package audit

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/hubrelay/hubrelay/internal/backoff"
	"github.com/hubrelay/hubrelay/relay"
)

const (
	// queueLen is the number of entries that wait to be written. More are dropped and counted.
	queueLen = 8192
	// batchLen is the maximum number of entries in one write.
	batchLen = 256
	// maxField is the maximum length of a field in bytes, because some come from clients.
	maxField = 256
	// stopTimeout limits the last writes.
	stopTimeout = time.Second

	dropLogInterval = time.Minute
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
	// Dropped is called for each entry that was dropped because too many wait. It may be nil and must not block.
	Dropped func()
	Log     *slog.Logger
}

// Log writes entries in the background.
type Log struct {
	opts    Options
	queue   chan *Entry
	dropped atomic.Int64
	dropLog rate.Sometimes
	now     func() time.Time
}

var _ Recorder = (*Log)(nil)

// NewLog returns a log. Entries wait until Run is called, up to a limit.
func NewLog(o Options) *Log {
	return &Log{
		opts: o, queue: make(chan *Entry, queueLen), dropLog: rate.Sometimes{Interval: dropLogInterval}, now: time.Now,
	}
}

// Record implements [Recorder]. It sets the time and shortens long fields. If too many entries wait, it drops e,
// because an attacker must not be able to stop the relay with entries.
func (l *Log) Record(e Entry) {
	e.Time = l.now().UTC().Truncate(time.Millisecond)
	for _, field := range []*string{&e.Actor, &e.Source, &e.Target} {
		*field = relay.Truncate(*field, maxField)
	}
	select {
	case l.queue <- &e:
	default:
		n := l.dropped.Add(1)
		if l.opts.Dropped != nil {
			l.opts.Dropped()
		}
		l.dropLog.Do(func() { l.opts.Log.Error("entries of the audit log were dropped", "dropped", n) })
	}
}

// Run writes entries to the file and to store until ctx ends, and then those that wait. It returns nil. While Redis
// does not respond, entries wait for it, but are in the file. A nil store stores nothing.
func (l *Log) Run(ctx context.Context, store Appender) error {
	for {
		select {
		case e := <-l.queue:
			l.write(ctx, store, l.collect(e))
		case <-ctx.Done():
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
			defer cancel()
			for {
				select {
				case e := <-l.queue:
					l.write(last, store, l.collect(e))
				default:
					return nil
				}
			}
		}
	}
}

// collect returns first and the entries that wait, as lines of JSON.
func (l *Log) collect(first *Entry) [][]byte {
	var lines [][]byte
	for e := first; ; {
		line, err := json.Marshal(e)
		if err == nil { // strings and a time always marshal
			lines = append(lines, line)
		}
		if len(lines) == batchLen {
			return lines
		}
		select {
		case e = <-l.queue:
		default:
			return lines
		}
	}
}

func (l *Log) write(ctx context.Context, store Appender, lines [][]byte) {
	if l.opts.File != "" {
		if err := l.writeFile(append(bytes.Join(lines, []byte("\n")), '\n')); err != nil {
			l.opts.Log.Error("audit log could not be written", "file", l.opts.File, "error", err)
		}
	}
	if store == nil {
		return
	}
	for retry := (backoff.Backoff{Min: 50 * time.Millisecond, Max: 2 * time.Second}); ; {
		err := store.Append(ctx, lines)
		if err == nil {
			return
		}
		if retry.IsReset() {
			l.opts.Log.Warn("audit log could not be stored in Redis, retrying", "error", err)
		}
		if retry.Sleep(ctx); ctx.Err() != nil {
			return
		}
	}
}

func (l *Log) writeFile(text []byte) error {
	if l.opts.File == Stdout {
		_, err := os.Stdout.Write(text)
		return err
	}
	f, err := os.OpenFile(l.opts.File, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	return err
}
