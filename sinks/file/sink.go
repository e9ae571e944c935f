// Package file writes notifications as JSON lines. The kind file appends them to a file that it can rotate, and the
// kind stdout writes them to standard output. A digest is one line. A batch is one line per notification, in one write.
//
// It makes one attempt and classifies the error. Retries, schedules, limits and dead letters belong to
// relay/internal/delivery. It imports no other sink.
package file

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"sync"

	"github.com/hubrelay/hubrelay/relay"
)

var (
	_ relay.Sink      = (*Sink)(nil)
	_ relay.Previewer = (*Sink)(nil)
	_ relay.Config    = (*Config)(nil)
	_ relay.Sink      = (*StdoutSink)(nil)
	_ relay.Previewer = (*StdoutSink)(nil)
	_ relay.Config    = (*StdoutConfig)(nil)
)

// Kind describes the sink type file. Sinks with the same path share the file.
func Kind() relay.SinkKind {
	shared := &fileRegistry{byPath: map[string]*rotatingFile{}}
	return relay.SinkKind{
		Type:    "file",
		Config:  func() relay.Config { return defaultConfig() },
		Batches: true,
		Open: relay.OpenAs("file sink", func(s relay.SinkSettings, c *Config) (*Sink, error) {
			c = c.withDir(s.Dir)
			if err := c.validate(); err != nil {
				return nil, err
			}
			return &Sink{files: shared, log: shared.open(c, s.Log), metadata: c.Metadata}, nil
		}),
	}
}

// Sink appends to one file, which is opened by the first delivery. Deliver may be called concurrently. Several sinks
// may write to one file, and so may several daemons on one machine if only one of them rotates it.
type Sink struct {
	files    *fileRegistry
	log      *rotatingFile
	metadata bool
	once     sync.Once
}

// Deliver appends d with one write: as one line, or for a batch as one line per notification.
func (s *Sink) Deliver(ctx context.Context, d relay.Delivery) error {
	text, err := encodeLines(d, s.metadata)
	if err != nil {
		return relay.Permanent(err)
	}
	return s.log.write(ctx, text)
}

// Preview returns the line.
func (s *Sink) Preview(_ context.Context, d relay.Delivery) (relay.Preview, error) {
	text, err := encodeLines(d, s.metadata)
	if err != nil {
		return relay.Preview{}, err
	}
	return relay.Preview{Method: "append to", Target: s.log.path, Payload: text}, nil
}

// Close closes the file unless another sink writes to it, and waits for running compressions. It may be called twice.
func (s *Sink) Close() (err error) {
	s.once.Do(func() { err = s.files.releaseFile(s.log) })
	return err
}

// fileRegistry contains the open files of all sinks by path.
type fileRegistry struct {
	mu     sync.Mutex
	byPath map[string]*rotatingFile
}

func (f *fileRegistry) open(c *Config, out *slog.Logger) *rotatingFile {
	f.mu.Lock()
	defer f.mu.Unlock()
	l := f.byPath[c.absPath()]
	switch {
	case l == nil:
		l = newRotatingFile(c.absPath())
		f.byPath[l.path] = l
	case l.currentSettings() != c.rotationSettings():
		out.Warn("another sink writes to this file, its settings are replaced", "path",
			l.path)
	}
	l.refs++
	l.set(c.rotationSettings())
	return l
}

func (f *fileRegistry) releaseFile(l *rotatingFile) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if l.refs--; l.refs > 0 {
		return nil
	}
	delete(f.byPath, l.path)
	return l.close()
}

// encodeLines encodes d as one line, or as one line per notification of a batch. It joins notifications that a producer
// published over several lines.
func encodeLines(d relay.Delivery, withMetadata bool) ([]byte, error) {
	if withMetadata {
		d = d.WithMetadata()
	}
	if d.Batch {
		return d.Join(nil, '\n', []byte{'\n'},
			func(out []byte, n relay.Notification) ([]byte, error) { return oneLine(out, n.ID, n.Data) })
	}
	data, err := d.Payload()
	if err != nil {
		return nil, err
	}
	out, err := oneLine(make([]byte, 0, len(data)+1), d.ID, data)
	return append(out, '\n'), err
}

// oneLine appends data to out, without line breaks.
func oneLine(out []byte, id string, data []byte) ([]byte, error) {
	if !bytes.ContainsAny(data, "\r\n") {
		return append(out, data...), nil
	}
	var joined bytes.Buffer
	if err := json.Compact(&joined, data); err != nil {
		return nil, fmt.Errorf("delivery %s is not JSON: %w", id, err)
	}
	return append(out, joined.Bytes()...), nil
}
