package term

import (
	"fmt"
	"io"
	"os"
	"sync"
	"unicode"
	"unicode/utf8"
)

// NewOutput returns f, or a writer to f if f is a terminal. The writer escapes characters that control a terminal and that
// encoding/json and log/slog print as they are: C1 controls, and controls of the direction of text. It writes them as
// \uXXXX, which JSON reads as the same character.
func NewOutput(f *os.File) io.Writer {
	if !IsTerminal(f) {
		return f
	}
	return &terminalWriter{File: f}
}

type terminalWriter struct {
	*os.File
	mu      sync.Mutex
	partial []byte // an incomplete character at the end of the last write
}

// Write may be called concurrently.
func (w *terminalWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	safe, partial := escapeControls(append(w.partial, p...))
	w.partial = partial
	if _, err := w.File.Write(safe); err != nil {
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
		case r >= 0x7f && r < 0xa0 || unicode.Is(unicode.Bidi_Control, r):
			safe = fmt.Appendf(safe, `\u%04x`, r)
		default:
			safe = append(safe, text[:size]...)
		}
		text = text[size:]
	}
	return safe, nil
}
