package file

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"

	"github.com/hubrelay/hubrelay/internal/await"
	"github.com/hubrelay/hubrelay/relay"
)

// Stdout describes the sink type stdout. All its sinks share out, which they do not close.
func Stdout(out *os.File) relay.SinkKind {
	shared := &stdoutWriter{original: out, writeSem: make(chan struct{}, 1)}
	shared.writeSem <- struct{}{}
	return relay.SinkKind{
		Type:    "stdout",
		Batches: true,
		Config:  func() relay.Config { return &StdoutConfig{Metadata: true} },
		Open: relay.OpenAs("stdout sink", func(_ relay.SinkSettings, c *StdoutConfig) (*StdoutSink, error) {
			return &StdoutSink{stream: shared, metadata: c.Metadata}, nil
		}),
	}
}

// StdoutConfig is the configuration of the standard output.
type StdoutConfig struct {
	// Metadata adds the members "id" and "time" to each notification.
	Metadata bool `koanf:"metadata" doc:"Add the members id and time to each event."`
}

// Check implements [relay.Config].
func (*StdoutConfig) Check(context.Context, relay.CheckEnv) relay.Report { return relay.Report{} }

// StdoutSink writes to the standard output of the daemon. Deliver may be called concurrently.
type StdoutSink struct {
	stream   *stdoutWriter
	metadata bool
}

// Deliver writes d as one line. If no process reads the output, Deliver returns when ctx ends, and the line is written
// later.
func (s *StdoutSink) Deliver(ctx context.Context, d relay.Delivery) error {
	text, err := encodeLines(d, s.metadata)
	if err != nil {
		return relay.Permanent(err)
	}
	return s.stream.write(ctx, text)
}

// Preview shows the line.
func (s *StdoutSink) Preview(_ context.Context, d relay.Delivery) (relay.Preview, error) {
	text, err := encodeLines(d, s.metadata)
	if err != nil {
		return relay.Preview{}, err
	}
	return relay.Preview{Method: "write to", Target: "standard output", Payload: text}, nil
}

// Close does nothing, because others also write to the standard output.
func (*StdoutSink) Close() error { return nil }

// stdoutWriter writes to a descriptor of any kind without changing its mode. A write deadline would require the
// non-blocking mode, also for other processes that share the descriptor.
type stdoutWriter struct {
	original *os.File
	writeSem chan struct{} // holds a token while no write is running

	file        *os.File // a copy of the descriptor, nil before the first line
	lastLineCut bool     // the last line was cut
}

// write abandons the system call when ctx ends, because it cannot be interrupted.
func (s *stdoutWriter) write(ctx context.Context, line []byte) error {
	if ctx.Err() != nil {
		return timeoutError(ctx, "write to standard output")
	}
	select {
	case <-s.writeSem:
	case <-ctx.Done():
		return timeoutError(ctx, "no process reads the standard output")
	}
	done := make(chan error, 1)
	go func() {
		defer func() { s.writeSem <- struct{}{} }()
		done <- s.writeNow(line)
	}()
	err, late := await.Value(ctx, done)
	if late != nil {
		return timeoutError(ctx, "no process reads the standard output")
	}
	return err
}

func (s *stdoutWriter) writeNow(line []byte) error {
	if s.file == nil {
		// A Go program exits if descriptor 1 is a broken pipe, but not if a copy of it is.
		var fd int
		err := controlFD(s.original, func(of int) (err error) {
			fd, err = dupFD(of)
			return err
		})
		if err != nil {
			return fmt.Errorf("open standard output: %w", err)
		}
		s.file = os.NewFile(uintptr(fd), "standard output")
	}
	if s.lastLineCut {
		line = append([]byte{'\n'}, line...)
	}
	n, err := s.file.Write(line)
	if n > 0 {
		s.lastLineCut = n < len(line)
	}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, syscall.EPIPE):
		return fmt.Errorf(
			"the reader of the standard output has closed it: restart the relay with a connected output: %w", err,
		)
	case errors.Is(err, syscall.ENOSPC):
		return fmt.Errorf("the disk of the standard output is full: free some space: %w", err)
	}
	return fmt.Errorf("write to standard output: %w", err)
}

func dupFD(fd int) (int, error) {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	copied, err := syscall.Dup(fd)
	if err == nil {
		syscall.CloseOnExec(copied)
	}
	return copied, err
}
