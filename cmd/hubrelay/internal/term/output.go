package term

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"unicode/utf16"
	"unicode/utf8"
)

// NewOutput returns f, or a writer to f if f is a terminal. encoding/json and log/slog print some characters unescaped that
// control a terminal: DEL, C1 controls, and controls of text direction. The writer prints their escape sequences of JSON,
// such as \u009b, so JSON output keeps its meaning.
func NewOutput(f *os.File) io.Writer {
	if !IsTerminal(f) {
		return f
	}
	return &escapingWriter{file: f}
}

// NewErrorOutput returns a writer to f that prints such characters escaped, also if f is no terminal, because people read the log
// of a service with other programs, which may print it unchanged.
func NewErrorOutput(f *os.File) io.Writer { return &escapingWriter{file: f} }

// escapingWriter does not embed the file, because io.WriteString and io.Copy would then bypass Write.
type escapingWriter struct {
	file    *os.File
	mu      sync.Mutex
	partial []byte // an incomplete character at the end of the last write
}

// Fd returns the descriptor of the file.
func (w *escapingWriter) Fd() uintptr { return w.file.Fd() }

// Write may be called concurrently.
func (w *escapingWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.partial) == 0 && !slices.ContainsFunc(p, func(b byte) bool { return b >= 0x7f }) {
		return w.file.Write(p)
	}
	safe, partial := escapeControls(append(w.partial, p...))
	w.partial = partial
	if _, err := w.file.Write(safe); err != nil {
		return 0, err
	}
	return len(p), nil
}

// escapeControls escapes the characters of text, and returns an incomplete character at its end separately.
func escapeControls(text []byte) (safe, partial []byte) {
	for len(text) > 0 {
		r, size := utf8.DecodeRune(text)
		switch {
		case r == utf8.RuneError && size == 1 && !utf8.FullRune(text):
			return safe, text
		case r == utf8.RuneError && size == 1:
			safe = utf8.AppendRune(safe, utf8.RuneError)
		case isHidden(r):
			for _, unit := range utf16.AppendRune(nil, r) { // as in JSON
				safe = fmt.Appendf(safe, `\u%04x`, unit)
			}
		default:
			safe = append(safe, text[:size]...)
		}
		text = text[size:]
	}
	return safe, nil
}

// Streams are the standard streams and the environment of a command.
type Streams struct {
	In       io.Reader
	Out, Err io.Writer
	Env      []string
}

// Getenv returns the value of an environment variable, or "" if it is not set.
func (s Streams) Getenv(name string) string {
	for _, v := range s.Env {
		if value, ok := strings.CutPrefix(v, name+"="); ok {
			return value
		}
	}
	return ""
}
