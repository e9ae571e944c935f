package filewatch_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/hubrelay/hubrelay/internal/filewatch"
)

func writeFile(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// A change is reported once, after two checks with the same content.
func TestWatcher_ReportsStableChangesOnce(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "a.yaml")
	writeFile(t, file, "one")
	w := filewatch.New(file)
	checkChanged := func(want ...bool) {
		t.Helper()
		for i, one := range want {
			if got := w.Changed(); got != one {
				t.Errorf("check %d: got %v", i, got)
			}
		}
	}
	checkChanged(false, false)
	writeFile(t, file, "two, half wri")
	checkChanged(false)
	writeFile(t, file, "two, half written")
	checkChanged(false, true, false)
	writeFile(t, file, "two, half written") // same content
	checkChanged(false, false)
	writeFile(t, filepath.Join(dir, "b"), "three")
	if err := os.Rename(filepath.Join(dir, "b"), file); err != nil {
		t.Fatal(err)
	}
	checkChanged(false, true, false)
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	checkChanged(false, false)
	writeFile(t, file, "three") // same content as before the removal
	checkChanged(false, false)
	writeFile(t, file, "skipped")
	w.MarkReported()
	checkChanged(false, false)
	writeFile(t, file, "three")
	checkChanged(false, true)
	writeFile(t, file, "four")
	checkChanged(false)
	writeFile(t, file, "three") // back to the reported content
	checkChanged(false, false)
}

// TestWatcher_FollowsLinks changes the links of a Kubernetes ConfigMap: each update links ..data to another
// directory.
func TestWatcher_FollowsLinks(t *testing.T) {
	dir := t.TempDir()
	for _, version := range []string{"1", "2"} {
		if err := os.Mkdir(filepath.Join(dir, version), 0o700); err != nil {
			t.Fatal(err)
		}
		writeFile(t, filepath.Join(dir, version, "hubrelay.yaml"), "version "+version)
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
	w := filewatch.New(filepath.Join(dir, "hubrelay.yaml"))
	if w.Changed() {
		t.Error("got a change before the first one")
	}
	link("2", "..data")
	if first, second := w.Changed(), w.Changed(); first || !second {
		t.Errorf("after the link changed: got %v, %v, want false, true", first, second)
	}
	if filewatch.New("").Changed() {
		t.Error("got a change without a path")
	}
}

// Missing and IsStable describe a removed file and a file that is being written.
func TestWatcher_MissingAndIsStable(t *testing.T) {
	file := filepath.Join(t.TempDir(), "a.yaml")
	writeFile(t, file, "one")
	w := filewatch.New(file)
	for i, step := range []struct {
		do              func()
		missing, stable bool
	}{
		{func() {}, false, true},
		{func() { writeFile(t, file, "two!") }, false, false},
		{func() {}, false, true},
		{func() { _ = os.Remove(file) }, true, false},
		{w.MarkReported, true, false},
		{func() { writeFile(t, file, "two!") }, false, true},
	} {
		step.do()
		w.Changed()
		if missing := w.Missing() != nil; missing != step.missing || w.IsStable() != step.stable {
			t.Errorf("step %d: missing %v, stable %v", i, missing, w.IsStable())
		}
	}
}

// A file that is not regular is never read, because a pipe may never end.
func TestWatcher_IgnoresPipes(t *testing.T) {
	file := filepath.Join(t.TempDir(), "a.yaml")
	if err := syscall.Mkfifo(file, 0o600); err != nil {
		t.Fatal(err)
	}
	if w := filewatch.New(file); w.Changed() || w.Missing() != nil {
		t.Errorf("pipe at creation: got %v", w.Missing())
	}
	_ = os.Remove(file)
	writeFile(t, file, "one")
	w := filewatch.New(file)
	if err := errors.Join(os.Remove(file), syscall.Mkfifo(file, 0o600)); err != nil {
		t.Fatal(err)
	}
	if w.Changed() || w.Missing() == nil || !strings.Contains(w.Missing().Error(), "is not a regular file") {
		t.Errorf("pipe after creation: got %v", w.Missing())
	}
	_ = os.Remove(file)
	writeFile(t, file, "two!")
	if w.Changed() || !w.Changed() || w.Missing() != nil {
		t.Error("the restored file was not reported")
	}
}
