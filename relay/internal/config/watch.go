package config

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"os"
)

// FileWatcher tells when a file has changed: by its content, so that a link that leads elsewhere, as those of a Kubernetes
// ConfigMap do, an editor that renames and one that writes in place are all the same. It may not be used concurrently.
type FileWatcher struct {
	path      string
	info      os.FileInfo       // at the last look
	reported  [sha256.Size]byte // that was reported, or there from the start
	candidate []byte            // what the last look saw, where that is not yet reported
	missing   error             // why the last look saw nothing
}

// NewFileWatcher begins with the file as it is now. Without a path nothing ever changes, nor does what is no file, such as a pipe,
// which is left to who loads it.
func NewFileWatcher(path string) *FileWatcher {
	w := &FileWatcher{path: path}
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() {
		w.path = ""
	}
	w.MarkReported()
	return w
}

// MarkReported takes what the file holds now for reported.
func (w *FileWatcher) MarkReported() {
	if w.path == "" {
		return
	}
	if sum, ok := w.checkFile(); ok {
		w.reported, w.candidate = sum, nil
	}
}

// Changed reports whether the file holds something else than when it was reported last, and two looks in a row saw the
// same: one that is being written is not taken half. A file that is gone or cannot be read has not changed.
func (w *FileWatcher) Changed() bool {
	if w.path == "" {
		return false
	}
	info, ok := w.stat()
	if !ok {
		return false
	}
	if w.candidate == nil && w.info != nil && os.SameFile(info, w.info) && info.ModTime().Equal(w.info.ModTime()) && info.Size() == w.info.Size() {
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

// Missing is why the last look could not read the file, or nil.
func (w *FileWatcher) Missing() error { return w.missing }

// IsStable tells whether the last look saw what was reported last, so that the file is not just being written.
func (w *FileWatcher) IsStable() bool { return w.missing == nil && w.candidate == nil }

func (w *FileWatcher) stat() (info os.FileInfo, ok bool) {
	info, err := os.Stat(w.path)
	if err == nil && !info.Mode().IsRegular() { // a pipe may never end
		err = fmt.Errorf("%s is no regular file", w.path)
	}
	w.missing = err
	return info, err == nil
}

func (w *FileWatcher) checkFile() (sum [sha256.Size]byte, ok bool) {
	info, ok := w.stat()
	if !ok {
		return sum, false
	}
	text, err := os.ReadFile(w.path)
	if w.missing = err; err != nil {
		return sum, false
	}
	w.info = info
	return sha256.Sum256(text), true
}
