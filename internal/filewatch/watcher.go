// Package filewatch reloads files after changes. [Value] is a value in a small file, such as a secret, that is checked
// when it is used. [Reloader] loads a larger file, such as the configuration, in the background after [Watcher] has
// detected a change. [PollSecrets] does the same for a set of secret files.
package filewatch

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"syscall"
)

// Watcher detects changes of a file by its content. It works for editors that write in place or rename, and
// for symbolic links such as the links of a Kubernetes ConfigMap. It must not be used concurrently.
type Watcher struct {
	path      string
	info      os.FileInfo       // at the last check
	reported  [sha256.Size]byte // last reported content
	candidate []byte            // digest at the last check, if not yet reported
	missing   error             // error of the last check
}

// New returns a Watcher that starts with the current content of the file. Without a path it never reports a
// change. The same applies to a path that is not a regular file, such as a pipe. The loader reports such a path.
func New(path string) *Watcher {
	w := &Watcher{path: path}
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() {
		w.path = ""
	}
	w.MarkReported()
	return w
}

// MarkReported treats the current content as reported.
func (w *Watcher) MarkReported() {
	if w.path == "" {
		return
	}
	if sum, ok := w.checkFile(); ok {
		w.reported, w.candidate = sum, nil
	}
}

// Changed reports whether the content differs from the last reported content and was the same in two successive
// checks, so a partially written file is not reported. A file that is missing or unreadable has not changed.
func (w *Watcher) Changed() bool {
	if w.path == "" {
		return false
	}
	info, ok := w.stat()
	if !ok {
		return false
	}
	if w.candidate == nil && IsSame(info, w.info) {
		return false
	}
	sum, ok := w.checkFile()
	switch {
	case !ok:
		return false
	case sum == w.reported:
		w.candidate = nil
		return false
	case !bytes.Equal(w.candidate, sum[:]):
		w.candidate = sum[:]
		return false
	}
	w.reported, w.candidate = sum, nil
	return true
}

// Missing returns the error of the last check, or nil.
func (w *Watcher) Missing() error { return w.missing }

// IsStable reports whether the last check found the reported content, so the file is not being written.
func (w *Watcher) IsStable() bool { return w.missing == nil && w.candidate == nil }

func (w *Watcher) stat() (info os.FileInfo, ok bool) {
	info, err := Stat(w.path)
	if err == nil && !info.Mode().IsRegular() { // Reading a pipe may never end.
		err = fmt.Errorf("%s is not a regular file", w.path)
	}
	w.missing = err
	return info, err == nil
}

func (w *Watcher) checkFile() (sum [sha256.Size]byte, ok bool) {
	info, ok := w.stat()
	if !ok {
		return sum, false
	}
	if sum, w.missing = callWithin(w.path, func() ([sha256.Size]byte, error) { return hashFile(w.path) }); w.missing != nil {
		return sum, false
	}
	w.info = info
	return sum, true
}

// maxCompared is the number of bytes of a file that are compared. Loaders reject files that are longer.
const maxCompared = 64 << 20

// hashFile returns the hash of a file's content. It does not wait for the writer of a pipe.
func hashFile(path string) (sum [sha256.Size]byte, err error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return sum, err
	}
	defer func() { _ = f.Close() }()
	h := sha256.New()
	if _, err := io.Copy(h, io.LimitReader(f, maxCompared)); err != nil {
		return sum, err
	}
	return [sha256.Size]byte(h.Sum(nil)), nil
}
