package file

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/sinks/sinktest"
)

// pipe is a standard output that is read until the end of the test.
type pipe struct {
	r, w *os.File
	sink *StdoutSink
	text bytes.Buffer
	done chan struct{} // closed when the reader has seen the end
}

func newPipe(t *testing.T) *pipe {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	kind := Stdout(w)
	s, err := kind.Open(sinkSettings, kind.Config())
	if err != nil {
		t.Fatal(err)
	}
	sink, ok := s.(*StdoutSink)
	if !ok {
		t.Fatalf("Open returned a %T", s)
	}
	p := &pipe{r: r, w: w, sink: sink, done: make(chan struct{})}
	t.Cleanup(func() { _ = r.Close(); p.shut() })
	return p
}

func (p *pipe) follow() {
	go func() {
		defer close(p.done)
		_, _ = io.Copy(&p.text, p.r)
	}()
}

// shut closes both descriptors of the writing end.
func (p *pipe) shut() {
	<-p.sink.stream.writeSem
	_ = p.w.Close()
	_ = p.sink.stream.file.Close()
	p.sink.stream.writeSem <- struct{}{}
}

// fill writes until the pipe takes no more.
func (p *pipe) fill(t *testing.T) {
	t.Helper()
	full := []byte(strings.Repeat("x", 1<<16))
	if err := controlFD(p.w, func(fd int) error {
		if err := syscall.SetNonblock(fd, true); err != nil {
			return err
		}
		for {
			if _, err := syscall.Write(fd, full); err != nil {
				return syscall.SetNonblock(fd, false)
			}
		}
	}); err != nil {
		t.Fatal(err)
	}
}

func TestStdoutConformance(t *testing.T) {
	t.Parallel()
	sinktest.Run(t, sinktest.Harness{
		Batches: true, Skip: cannot(),
		Open: func(t *testing.T, b sinktest.Behavior) (relay.Sink, func() []string) {
			p := newPipe(t)
			known := &remembering{Sink: p.sink, Previewer: p.sink}
			switch b {
			case sinktest.Unreachable:
				_ = p.r.Close()
				close(p.done)
			case sinktest.Hang:
				p.fill(t)
			default:
				p.follow()
			}
			return known, func() []string {
				p.shut()
				<-p.done
				return known.idsOf(t, p.text.String())
			}
		},
	})
}

// A reader that stops holds up an attempt for its timeout and no longer. The line that was begun is whole once it reads
// again.
func TestReaderThatStops(t *testing.T) {
	t.Parallel()
	p := newPipe(t)
	p.fill(t)
	for range 2 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		err := p.sink.Deliver(ctx, sinktest.Sample("a"))
		cancel()
		refused(t, err, "no process reads the standard output")
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
	}
	p.follow()
	deliver(t, p.sink, "b")
	p.shut()
	<-p.done
	lines := strings.TrimLeft(p.text.String(), "x")
	if got := strings.Join((&remembering{}).idsOf(t, lines), " "); got != "a b" {
		t.Errorf("%s", got)
	}
}

// lastMoment is a context that ends when the line is written, while a caller starts to wait for both.
type lastMoment struct {
	context.Context
	turn  chan struct{}
	asked int
}

func (l *lastMoment) Done() <-chan struct{} {
	if l.asked++; l.asked == 1 {
		return l.Context.Done() // the wait for the turn
	}
	for len(l.turn) == 0 {
		time.Sleep(time.Millisecond)
	}
	ended := make(chan struct{})
	close(ended)
	return ended
}

// A line that is written as the time ends is written once. Go chooses by chance, so this is tried often.
func TestWrittenAtTheLastMoment(t *testing.T) {
	t.Parallel()
	p := newPipe(t)
	p.follow()
	for range 30 {
		if err := p.sink.Deliver(&lastMoment{Context: t.Context(), turn: p.sink.stream.writeSem},
			sinktest.Sample("a")); err != nil {
			t.Fatal(err)
		}
	}
	p.shut()
	<-p.done
}

// intoStdout is a daemon whose standard output is a pipe.
func intoStdout() {
	kind := Stdout(os.Stdout)
	s, err := kind.Open(sinkSettings, kind.Config())
	if err != nil {
		panic(err)
	}
	for range 2 {
		outcome, _ := relay.Classify(s.Deliver(context.Background(), sinktest.Sample("a")))
		fmt.Fprintln(os.Stderr, outcome)
	}
}

// Go exits if a write to standard output fails with a broken pipe. This process continues.
func TestClosedStdout(t *testing.T) {
	t.Parallel()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	_ = r.Close()
	var said strings.Builder
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "HUBRELAY_TEST=stdout", "GORACE=atexit_sleep_ms=0")
	cmd.Stdout, cmd.Stderr = w, &said
	err = cmd.Run()
	_ = w.Close()
	if err != nil || said.String() != "retry\nretry\n" {
		t.Errorf("%v: %s", err, said.String())
	}
}

// A disk without room gives a clear word.
func TestFullStdout(t *testing.T) {
	t.Parallel()
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skip(err)
	}
	defer func() { _ = full.Close() }()
	kind := Stdout(full)
	s, err := kind.Open(sinkSettings, kind.Config())
	if err != nil {
		t.Fatal(err)
	}
	sink, ok := s.(*StdoutSink)
	if !ok {
		t.Fatal("another sink")
	}
	refused(t, s.Deliver(t.Context(), sinktest.Sample("a")), "is full: free some space")
	_ = sink.stream.file.Close()
}

// Sinks of one daemon share the standard output, and their lines stay apart.
func TestStdoutIsShared(t *testing.T) {
	t.Parallel()
	p := newPipe(t)
	p.follow()
	other := &StdoutSink{stream: p.sink.stream}
	long := sinktest.SampleDigest("d", 300, 300) // longer than a pipe takes at once
	done := make(chan error, 2)
	for _, s := range []*StdoutSink{p.sink, other} {
		go func() {
			var err error
			for range 20 {
				err = errors.Join(err, s.Deliver(context.Background(), long))
			}
			done <- err
		}()
	}
	if err := errors.Join(<-done, <-done); err != nil {
		t.Error(err)
	}
	p.shut()
	<-p.done
	if n := len((&remembering{ids: []string{"d"}}).idsOf(t, p.text.String())); n != 40 {
		t.Errorf("%d lines", n)
	}
}
