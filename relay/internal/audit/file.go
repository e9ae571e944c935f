package audit

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/hubrelay/hubrelay/internal/hashchain"
)

// chainedEntry is the line of an entry in a file with a hash chain.
type chainedEntry struct {
	*Entry
	PreviousSHA256 string `json:"previous_sha256"`
}

// fileWriter writes entries to a file. It must not be used concurrently.
type fileWriter struct {
	opts *Options
	// previous is the hash of the last line. The writer reads it from the file only once, so the chain also shows
	// changes that are made while it runs.
	previous string
	// checked reports whether the file ends with a complete line.
	checked bool
	// keepTail keeps a last line that lacks only its line break.
	keepTail bool
}

func newFileWriter(o *Options) *fileWriter { return &fileWriter{opts: o, keepTail: true} }

func (w *fileWriter) write(_ context.Context, batch []*Entry) (int, error) {
	if err := w.checkEnd(); err != nil {
		return 0, err
	}
	var text []byte
	hashes := make([]string, len(batch))
	previous := w.previous
	for i, e := range batch {
		line, err := w.encode(e, previous)
		if err != nil {
			return 0, err
		}
		previous = hashchain.Hash(line)
		hashes[i] = previous
		text = append(append(text, line...), '\n')
	}
	written, err := w.appendText(text)
	n := bytes.Count(text[:written], []byte("\n"))
	if n > 0 {
		w.previous = hashes[n-1]
	}
	if err != nil {
		// An incomplete line is written again.
		w.checked, w.keepTail = false, false
		return n, fmt.Errorf("write %s: %w", w.opts.File, err)
	}
	return n, nil
}

func (w *fileWriter) encode(e *Entry, previous string) ([]byte, error) {
	if w.opts.HashChain {
		return encodeJSON(chainedEntry{Entry: e, PreviousSHA256: previous})
	}
	return encodeJSON(e)
}

// encodeJSON also escapes characters that could control a terminal, because clients choose the names in entries.
func encodeJSON(v any) ([]byte, error) {
	text, err := json.Marshal(v)
	if err != nil || bytes.IndexFunc(text, isUnprintable) < 0 {
		return text, err
	}
	var escaped []byte
	for _, r := range string(text) {
		if !isUnprintable(r) {
			escaped = utf8.AppendRune(escaped, r)
			continue
		}
		for _, unit := range utf16.AppendRune(nil, r) {
			escaped = fmt.Appendf(escaped, `\u%04x`, unit)
		}
	}
	return escaped, nil
}

func isUnprintable(r rune) bool { return r >= 0x7f && !unicode.IsPrint(r) }

func (w *fileWriter) appendText(text []byte) (int, error) {
	if w.opts.File == Stdout {
		return w.opts.Stdout.Write(text)
	}
	f, err := os.OpenFile(w.opts.File, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return 0, err
	}
	n, err := f.Write(text)
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	return n, err
}

// checkEnd reads the hash of the last line when the writer starts. It repairs an incomplete last line, which a crash or a
// failed write has left.
func (w *fileWriter) checkEnd() error {
	if w.checked {
		return nil
	}
	last, err := w.repairEnd()
	if err != nil && w.opts.HashChain {
		return fmt.Errorf("read the end of %s: %w", w.opts.File, err)
	}
	if w.previous == "" {
		w.previous = last
	}
	w.checked = true
	return nil
}

// repairEnd returns the hash of the last line after it has repaired the end of the file.
func (w *fileWriter) repairEnd() (string, error) {
	if w.opts.File == Stdout {
		return hashchain.Zero, nil
	}
	info, err := os.Stat(w.opts.File)
	if errors.Is(err, fs.ErrNotExist) || err == nil && (!info.Mode().IsRegular() || info.Size() == 0) {
		return hashchain.Zero, nil
	}
	if err != nil {
		return "", err
	}
	f, err := os.OpenFile(w.opts.File, os.O_RDWR|os.O_APPEND, 0)
	if err != nil {
		return "", err
	}
	defer f.Close()
	size := info.Size()
	tail, err := lineStart(f, size)
	if err != nil {
		return "", err
	}
	if tail < size {
		end, err := w.repairTail(f, tail, size)
		if err != nil {
			return "", err
		}
		tail = end
	}
	if tail == 0 {
		return hashchain.Zero, nil
	}
	start, err := lineStart(f, tail-1)
	if err != nil {
		return "", err
	}
	return hashSection(f, start, tail-1)
}

// repairTail completes or removes an incomplete last line, and returns the end of the last complete line.
func (w *fileWriter) repairTail(f *os.File, tail, size int64) (int64, error) {
	if w.keepTail && size-tail <= hashchain.MaxLine {
		text := make([]byte, size-tail)
		if _, err := f.ReadAt(text, tail); err != nil {
			return 0, err
		}
		if json.Valid(text) {
			_, err := f.WriteString("\n")
			return size + 1, err
		}
	}
	if err := f.Truncate(tail); err != nil {
		// The file may be append-only. Then the incomplete line stays, and the chain does not contain it.
		_, err := f.WriteString("\n")
		return tail, err
	}
	w.opts.Log.Warn("incomplete line of the audit log was removed", "path", w.opts.File, "bytes", size-tail)
	return tail, nil
}

// lineStart returns the position after the last line break before end, or 0.
func lineStart(r io.ReaderAt, end int64) (int64, error) {
	const block = 4096
	var buf [block]byte
	for end > 0 {
		part := buf[:min(block, end)]
		if _, err := r.ReadAt(part, end-int64(len(part))); err != nil {
			return 0, err
		}
		if i := bytes.LastIndexByte(part, '\n'); i >= 0 {
			return end - int64(len(part)) + int64(i) + 1, nil
		}
		end -= int64(len(part))
	}
	return 0, nil
}

func hashSection(r io.ReaderAt, start, end int64) (string, error) {
	h := sha256.New()
	if _, err := io.Copy(h, io.NewSectionReader(r, start, end-start)); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}
