package config_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/hubrelay/hubrelay/relay/internal/config"
)

func put(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// A change is told once, when two looks saw the same.
func TestWatch(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "a.yaml")
	put(t, file, "one")
	w := config.NewFileWatcher(file)
	looks := func(want ...bool) {
		t.Helper()
		for i, one := range want {
			if got := w.Changed(); got != one {
				t.Errorf("look %d: %v", i, got)
			}
		}
	}
	looks(false, false)
	put(t, file, "two, half wri")
	looks(false)
	put(t, file, "two, half written")
	looks(false, true, false)
	put(t, file, "two, half written") // touched
	looks(false, false)
	put(t, filepath.Join(dir, "b"), "three")
	if err := os.Rename(filepath.Join(dir, "b"), file); err != nil {
		t.Fatal(err)
	}
	looks(false, true, false)
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	looks(false, false)
	put(t, file, "three") // as it was before it went
	looks(false, false)
	put(t, file, "skipped")
	w.MarkReported()
	looks(false, false)
	put(t, file, "three")
	looks(false, true)
	put(t, file, "four")
	looks(false)
	put(t, file, "three") // and back
	looks(false, false)
}

// TestWatchLinks follows the links of a ConfigMap: ..data leads to another folder at each update.
func TestWatchLinks(t *testing.T) {
	dir := t.TempDir()
	for _, version := range []string{"1", "2"} {
		if err := os.Mkdir(filepath.Join(dir, version), 0o700); err != nil {
			t.Fatal(err)
		}
		put(t, filepath.Join(dir, version, "hubrelay.yaml"), "version "+version)
	}
	link := func(to, at string) {
		t.Helper()
		fresh := filepath.Join(dir, "fresh")
		if err := os.Symlink(to, fresh); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(fresh, filepath.Join(dir, at)); err != nil {
			t.Fatal(err)
		}
	}
	link("1", "..data")
	link(filepath.Join("..data", "hubrelay.yaml"), "hubrelay.yaml")
	w := config.NewFileWatcher(filepath.Join(dir, "hubrelay.yaml"))
	if w.Changed() {
		t.Error("changed from the start")
	}
	link("2", "..data")
	if first, second := w.Changed(), w.Changed(); first || !second {
		t.Errorf("after the links were moved: %v, %v", first, second)
	}
	if config.NewFileWatcher("").Changed() {
		t.Error("no file has changed")
	}
}

// A file that is gone, or is just being written, is known as such.
func TestWatchMissing(t *testing.T) {
	file := filepath.Join(t.TempDir(), "a.yaml")
	put(t, file, "one")
	w := config.NewFileWatcher(file)
	for i, step := range []struct {
		do               func()
		missing, settled bool
	}{
		{func() {}, false, true},
		{func() { put(t, file, "two!") }, false, false},
		{func() {}, false, true},
		{func() { _ = os.Remove(file) }, true, false},
		{w.MarkReported, true, false},
		{func() { put(t, file, "two!") }, false, true},
	} {
		step.do()
		w.Changed()
		if missing := w.Missing() != nil; missing != step.missing || w.IsStable() != step.settled {
			t.Errorf("step %d: missing %v, settled %v", i, missing, w.IsStable())
		}
	}
}

// What is no file is never read: a pipe may not end, and can be read once.
func TestWatchNoFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "a.yaml")
	if err := syscall.Mkfifo(file, 0o600); err != nil {
		t.Fatal(err)
	}
	if w := config.NewFileWatcher(file); w.Changed() || w.Missing() != nil {
		t.Errorf("a pipe from the start: %v", w.Missing())
	}
	_ = os.Remove(file)
	put(t, file, "one")
	w := config.NewFileWatcher(file)
	if err := errors.Join(os.Remove(file), syscall.Mkfifo(file, 0o600)); err != nil {
		t.Fatal(err)
	}
	if w.Changed() || w.Missing() == nil || !strings.Contains(w.Missing().Error(), "is no regular file") {
		t.Errorf("a pipe later: %v", w.Missing())
	}
	_ = os.Remove(file)
	put(t, file, "two!")
	if w.Changed() || !w.Changed() || w.Missing() != nil {
		t.Error("the file is not taken up again")
	}
}
