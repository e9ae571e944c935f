package testkit

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
)

// tailBytes is the part of an output that a failure message contains.
const tailBytes = 16 << 10

// Output is the output of a process.
type Output struct{ Buffer }

// Tail returns the last n bytes of the output.
func (o *Output) Tail(n int) string {
	text := o.String()
	if len(text) <= n {
		return text
	}
	return "…" + text[len(text)-n:]
}

// Contains is a probe for Eventually. It succeeds when the output contains part.
func (o *Output) Contains(part string) func() error {
	return func() error {
		if text := o.String(); !strings.Contains(text, part) {
			return fmt.Errorf("%q is not in:\n%s", part, text)
		}
		return nil
	}
}

// Buffer collects what a program or a logger writes. It may be used concurrently.
type Buffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write appends p.
func (b *Buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

// String returns the text written so far.
func (b *Buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// Log returns a logger whose records are printed if the test fails.
func Log(t testing.TB) *slog.Logger {
	t.Helper()
	out := new(Output)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("log:\n%s", out.Tail(tailBytes))
		}
	})
	return slog.New(slog.NewTextHandler(out, nil))
}
